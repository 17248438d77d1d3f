"""A parameter before it is packed: its shape, and its rows when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Original:
    """``rows(first, last)`` gives that part of the first dimension, in any float type, as a tensor to be read only."""

    shape: tuple[int, ...]
    rows: Callable[[int, int], torch.Tensor]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Original:
        """A tensor that is in memory."""
        held = tensor.detach()
        return cls(tuple(held.shape), lambda first, last: held[first:last] if held.ndim else held)

    def whole(self) -> torch.Tensor:
        """All of it."""
        return self.rows(0, self.shape[0] if self.shape else 1)
