"""A language model run by PyTorch eager: what a compiled one is developed against, and compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.errors import UsageError
from assay.tokens.reference import Reference, watching


@dataclass(frozen=True)
class ModulePoint:
    """What leaves one module; implements :class:`assay.backends.protocol.Point`."""

    name: str
    ops: tuple[str, ...]
    source: str = ""


class TorchModel:
    """Implements :class:`assay.backends.protocol.LanguageModel` in float32, with PyTorch's own KV cache."""

    def __init__(self, source: str, *, threads: int = 1, context: int | None = None) -> None:
        torch.set_num_threads(threads)
        self._reference = Reference.eager(Path(source))
        config = self._reference.module.config
        self.vocabulary: int = config.vocab_size
        self.context: int = context or config.max_position_embeddings
        self._threads = threads
        self.reset()

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        return self._reference.logits(ids)

    def reset(self) -> None:
        from transformers import DynamicCache

        self._cache = DynamicCache()

    def prefill(self, ids: Sequence[int]) -> int:
        past = self._cache.get_seq_length()
        if past + len(ids) > self.context:
            raise UsageError(f"feeding {len(ids)} tokens after {past}: context={self.context}; give a shorter prompt")
        return int(self._reference.step(ids, self._cache)[-1].argmax())

    def decode(self, token: int) -> int:
        return self.prefill([token])

    def residuals(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        return self._reference.residuals(ids)[1]

    def points(self, *, cached: bool = False) -> Sequence[ModulePoint]:
        """What leaves the modules of each layer that hold weights, and the layers themselves."""
        found = []
        for name, layer in self._reference.layers.items():
            inner = [(path, m) for path, m in layer.named_modules() if path and any(True for _ in m.parameters(False))]
            found += [ModulePoint(f"{name}.{path}", (type(module).__name__,)) for path, module in inner]
            found.append(ModulePoint(name, (type(layer).__name__,)))
        return found

    def trace(self, ids: Sequence[int], names: Sequence[str], *, prompt: int | None = None) -> dict[str, np.ndarray]:
        if prompt is None:
            return next(self._reference.passes([ids], names)).seen
        self.reset()
        pieces = [ids[:prompt], *([token] for token in ids[prompt:])]
        seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
        with watching(self._reference.module, names, lambda name, value: seen[name].append(value[0].numpy())):
            for piece in pieces:
                self.prefill(piece)
        return {name: np.concatenate(rows) for name, rows in seen.items()}

    def facts(self) -> Mapping[str, Any]:
        parameters = {p.data_ptr(): p.numel() * p.element_size() for p in self._reference.module.parameters()}
        return {"weight_bytes": sum(parameters.values()), "quant": "fp32", "target": "host", "threads": self._threads}
