"""A captured PyTorch program: an FX graph whose weights are arguments, executable in PyTorch at every stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from anvil.quant import Stored


@dataclass(frozen=True)
class CacheSpec:
    """One cache that the incremental form of a model reads and writes: keys, values, or the scales of either.

    Shape [B, heads, capacity, head_dim]; that of scales, one per token and head, [B, heads, capacity].
    """

    placeholder: str
    heads: int
    head_dim: int | None
    dtype: torch.dtype

    def shape(self, batch: Any, capacity: Any) -> tuple[Any, ...]:
        """Sizes for so many sequences of at most ``capacity`` tokens; either may be symbolic."""
        return (batch, self.heads, capacity, *(() if self.head_dim is None else (self.head_dim,)))


@dataclass
class GraphProgram:
    """``module``'s placeholders are the inputs, then the caches, then the parameters, each under its own name.

    Every node carries fake-tensor metadata in ``node.meta["val"]`` with symbolic sizes. ``params`` holds live
    references to the model's own tensors (nothing is copied); ``paths`` maps a parameter's placeholder to its name
    in the original module. ``symbols`` gives the inclusive range of each symbolic size.
    """

    name: str
    module: torch.fx.GraphModule
    inputs: tuple[str, ...]
    params: dict[str, torch.Tensor]
    paths: dict[str, str]
    symbols: dict[str, tuple[int, int | None]]
    caches: tuple[CacheSpec, ...] = ()
    stage: str = "capture"
    stored: dict[str, Stored] = field(default_factory=dict)  # parameters as a file holds them, quantised already
    notes: list[str] = field(default_factory=list)  # what each pass did, for people
