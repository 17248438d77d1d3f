"""What a weight source is, and what loading one gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anvil.errors import WeightsError
from anvil.quant import Stored


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in PyTorch, ready to be compiled or to serve as the yardstick.

    ``module`` maps int64 ids [B, S] to logits [B, S, vocabulary]. ``tokenizer`` is None where the source has none.
    ``provenance`` says where the weights come from: source, kind, and the SHA-256 of what was read. ``stored`` reads,
    where the source holds quantised matrices, these as they lie in it, by parameter name.
    """

    module: torch.nn.Module
    config: Any
    tokenizer: Any | None
    provenance: dict[str, Any] = field(default_factory=dict)
    stored: Callable[[], dict[str, Stored]] | None = None

    @property
    def context(self) -> int:
        """Most positions the model was made for, in tokens."""
        return int(self.config.max_position_embeddings)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a generation, from the generation configuration or the configuration."""
        generation = getattr(self.module, "generation_config", None)
        eos = getattr(generation, "eos_token_id", None)
        eos = self.config.eos_token_id if eos is None else eos
        if eos is None:
            return ()
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)


@dataclass(frozen=True)
class Source:
    """A way to get weights. ``load(text, dtype)`` gets the text of the source as the user wrote it."""

    kind: str
    syntax: str  # for error messages and documentation
    matches: Callable[[str], bool]
    load: Callable[[str, torch.dtype], LoadedModel]


def sha256(paths: list[Path]) -> str:
    """SHA-256 over the contents of ``paths``, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def existing(path: Path, what: str) -> Path:
    """``path`` if it exists. Raises :class:`WeightsError` otherwise."""
    if not path.exists():
        raise WeightsError(f"loading {what}: path={path} does not exist; expected a file or folder on this machine")
    return path
