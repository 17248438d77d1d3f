"""The token stage without a stored golden: PyTorch verifies here and now what the compiled model said.

The compiled model proposes the greedy ids, one float64 pass over prompt and proposal must predict each of them, and
where it does not the golden goes on with float64's own choice. Then everything is judged as against a stored golden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import transformers

from assay.backends.protocol import LanguageModel
from assay.cache import cached
from assay.errors import WeightsError
from assay.tokens import judge
from assay.tokens.golden import FORMAT, Golden, check_belongs, load_golden
from assay.tokens.make_golden import Draft, Progress, make_golden
from assay.tokens.registry import golden_path
from assay.tokens.source import resolve, weights_hash
from assay.tokens.spec import ModelSpec
from assay.tokens.stage import TokenStage


@dataclass(frozen=True)
class Live:
    """Stages of one model. ``load(path, quant)`` gives the compiled one, ``name`` says in a golden who proposed.
    ``only`` are the prompts that are asked for, by index; without it as many as a golden holds."""

    spec: ModelSpec
    weights: str | None
    load: Callable[[Path, str], LanguageModel]
    name: str
    progress: Progress = lambda _: None
    only: Sequence[int] | None = None

    def stage(self, quant: str) -> tuple[TokenStage, LanguageModel]:
        """The stage of a mode, its golden made now, and the compiled model. Raises as :func:`make_golden`."""
        compiled, said = self.load(self.path, quant), {}

        def propose(ids: list[int], count: int) -> list[int]:
            said[tuple(ids)] = judge.generate(compiled, ids, count)
            return said[tuple(ids)]

        draft = Draft(f"{self.name} {quant}", propose)
        golden = make_golden(self.spec, self.path, quant, draft, self.progress, yardstick=False, only=self.only)
        plain = golden if quant == "fp32" else self._plain
        return TokenStage(self.spec, quant, self.weights, golden=golden, plain=plain, drafted=said), compiled

    @cached_property
    def path(self) -> Path:
        return resolve(self.spec, self.weights)

    @cached_property
    def _plain(self) -> Golden:
        """The fp32 golden that a mode's cost is taken against: the stored one if it is of these weights, else made once
        for all modes and kept in the cache."""
        with suppress(WeightsError):
            stored = load_golden(golden_path(self.spec))
            check_belongs(stored, self.spec, "fp32", weights_hash(self.path))
            return stored
        folder = Path(__file__).parent
        code = b"".join(file.read_bytes() for file in sorted([*folder.glob("*.py"), *folder.glob("*.txt")]))
        depends = (FORMAT, weights_hash(self.path), torch.__version__, transformers.__version__, repr(self.spec))
        name = hashlib.sha256(repr(depends).encode() + code).hexdigest()[:32]
        made = cached(
            f"live/{self.spec.name}-{name}.safetensors",
            lambda path: make_golden(self.spec, self.path, progress=self.progress, yardstick=False).save(path),
        )
        return load_golden(made)
