"""Ops that move elements, by way of views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anvil.lower.decompose.demands import of_shape

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


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Around the end for ``circular``: PyTorch's own definition of it works in place."""
    if mode != "circular":
        return aten.pad.default(x, pad, mode, value)
    for position in range(len(pad) // 2):
        dim, before, after = x.ndim - 1 - position, pad[2 * position], pad[2 * position + 1]
        size = x.shape[dim]
        middle = x.narrow(dim, max(-before, 0), size - max(-before, 0) - max(-after, 0))
        parts = [x.narrow(dim, size - before, before)] if before > 0 else []
        x = torch.cat([*parts, middle, *([x.narrow(dim, 0, after)] if after > 0 else [])], dim)
    return x


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def _split(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """Slices one after the other."""
    starts = [sum(sizes[:position]) for position in range(len(sizes))]
    return [aten.slice.Tensor(x, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _split_evenly(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Pieces of ``size``; the number of pieces is known, so a symbolic length is too, up to the last piece."""
    count = len(aten.split.Tensor(x, size, dim))
    ends = [(position + 1) * size for position in range(count - 1)] + [x.shape[dim]]
    return [aten.slice.Tensor(x, dim, position * size, end) for position, end in enumerate(ends)]


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [x.select(dim, position) for position in range(x.shape[dim])]


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Every element is the source's where its place is one of the slice's."""
    dim %= x.ndim
    size = x.shape[dim]
    place = torch.arange(size)
    first, stop = (
        torch.sym_max(torch.sym_min(_from_front(bound, size), size), 0)
        for bound in (0 if start is None else start, size if end is None else end)
    )
    taken = torch.sym_max((stop - first + step - 1) // step, 0)
    src = of_shape(src, [*x.shape[:dim], taken, *x.shape[dim + 1 :]], "src")
    last = first + (src.shape[dim] - 1) * step
    inside = (place >= first) & (place <= last) & ((place - first) % step == 0)
    shape = [1] * x.ndim
    shape[dim] = size
    picked = aten.index_select(src.to(x.dtype), dim, ((place - first) // step).clamp(0, src.shape[dim] - 1))
    return torch.where(inside.view(shape), picked, x)


def _from_front(place: int, size: int) -> int:
    return place + size if isinstance(place, int) and place < 0 else place


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    dim %= x.ndim
    src = of_shape(src, [*x.shape[:dim], *x.shape[dim + 1 :]], "src")
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    place = torch.arange(x.shape[dim]).view(shape)
    return torch.where(place == _from_front(index, x.shape[dim]), src.to(x.dtype).unsqueeze(dim), x)


def _diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Rows of the source lie along its last dimension, by the smaller of row and column."""
    rows, columns = (x.shape[dim] - max(-side, 0) for dim, side in ((dim1, offset), (dim2, -offset)))
    length = torch.sym_max(torch.sym_min(rows, columns), 0)
    src = of_shape(
        src, [*(size for i, size in enumerate(x.shape) if i not in (dim1 % x.ndim, dim2 % x.ndim)), length], "src"
    )
    row, column = torch.arange(x.shape[dim1])[:, None], torch.arange(x.shape[dim2])[None, :]
    along = (torch.minimum(row, column) if offset == 0 else row if offset > 0 else column) + 0 * (row + column)
    spread = src.to(x.dtype)[..., along.clamp(0, src.shape[-1] - 1)]
    moved = x.movedim((dim1, dim2), (-2, -1))
    return torch.where(column - row == offset, spread, moved).movedim((-2, -1), (dim1, dim2))


DECOMPOSITIONS = {
    aten.pad.default: _pad,
    aten.stack.default: _stack,
    aten.split_with_sizes.default: _split,
    aten.split.Tensor: _split_evenly,
    aten.unbind.int: _unbind,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.roll.default: _roll,
    aten.repeat_interleave.self_int: _repeat_interleave,
}
