"""Ops that move elements, by way of views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Without dimensions the elements roll in row-major order; a scalar has nothing to roll."""
    if x.ndim == 0:
        return x.clone()
    if len(dims) > 0:
        return NotImplemented
    return aten.roll(x.reshape(-1), shifts, [0]).reshape(x.shape)


def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Without a dimension the elements repeat in row-major order."""
    return NotImplemented if dim is not None else aten.repeat_interleave.self_int(x.reshape(-1), repeats, 0)


DECOMPOSITIONS = {
    aten.roll.default: _roll,
    aten.repeat_interleave.self_int: _repeat_interleave,
}
