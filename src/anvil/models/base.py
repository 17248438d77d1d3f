"""What a weight source is, and what loading one gives."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anvil.errors import WeightsError
from anvil.models.weights import Weights, check_shapes
from anvil.quant import Stored
from anvil.runtime.original import Original


@dataclass
class LoadedModel:
    """A causal language model, ready to be compiled; what is not needed for that is read when it is asked for.

    ``settings`` are the keys of its config.json, ``weights`` its tensors by parameter name. ``what`` names it in
    messages. ``stop_ids`` end a generation. ``facts`` says where the weights come from, with the SHA-256 of what was
    read.
    """

    what: str
    settings: Mapping[str, Any]
    weights: Weights
    load_module: Callable[[], torch.nn.Module]
    stop_ids: tuple[int, ...] = ()
    load_tokenizer: Callable[[], Any | None] = lambda: None
    facts: Callable[[], dict[str, Any]] = field(default=dict)
    traced: dict[Any, Any] = field(default_factory=dict)  # graphs of the model, kept by whoever traces it

    @functools.cached_property
    def module(self) -> torch.nn.Module:
        """The model in PyTorch with its weights, from int64 ids [B, S] to logits [B, S, vocabulary]: the yardstick."""
        return self.load_module()

    @functools.cached_property
    def config(self) -> Any:
        """The configuration as an object of transformers. Raises :class:`WeightsError`."""
        from anvil.models.skeleton import typed_config

        return typed_config(self.settings)

    @functools.cached_property
    def skeleton(self) -> torch.nn.Module:
        """The model in PyTorch, its parameters without values."""
        from anvil.models.skeleton import skeleton

        return skeleton(self.config)

    @functools.cached_property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name of what a checkpoint holds: parameters, a tied one under its first name, stored buffers."""
        module = self.skeleton
        tied = {name for name, _ in module.named_parameters(remove_duplicate=False)} - dict(
            module.named_parameters()
        ).keys()
        return {name: tuple(value.shape) for name, value in module.state_dict().items() if name not in tied}

    def originals(self, wanted: Mapping[str, tuple[int, ...]]) -> Mapping[str, Original]:
        """The weights of the named parameters. Raises :class:`WeightsError` where one has another shape.

        A source that names, cuts or joins tensors in another way is read through transformers, as a whole.
        """
        held = self.weights.originals
        check_shapes(wanted, held, self.what)
        if all(name in held for name in wanted):
            return held
        held = {name: Original.of(tensor) for name, tensor in self.module.state_dict().items()}
        check_shapes(wanted, held, self.what)
        return held

    @functools.cached_property
    def tokenizer(self) -> Any | None:
        """The tokenizer that lies beside the weights, as an object of transformers; None where there is none."""
        return self.load_tokenizer()

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """Source, kind, and the SHA-256 of what was read."""
        return self.facts()

    @property
    def stored(self) -> Mapping[str, Stored]:
        """Matrices that the source holds quantised, by parameter name."""
        return self.weights.stored

    @property
    def context(self) -> int:
        """Most positions the model was made for, in tokens."""
        return int(self.settings.get("max_position_embeddings") or self.config.max_position_embeddings)


@dataclass(frozen=True)
class Source:
    """A way to get weights. ``load(text)`` gets the text of the source as the user wrote it."""

    kind: str
    syntax: str  # for error messages and documentation
    matches: Callable[[str], bool]
    load: Callable[[str], LoadedModel]


def ids_of(value: int | list[int] | None) -> tuple[int, ...]:
    """``eos_token_id`` as files spell it: a number, a list, or nothing."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


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
