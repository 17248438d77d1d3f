"""Operations that only look at a tensor differently: new sizes, strides and offset, no memory moved.

``REMAPS`` permute, insert, drop and broadcast dimensions: each gives, per new dimension, the old one it was (None: a
new one). ``WINDOWS`` change offset, sizes and strides in other ways and give None where no strides can express the
result, so that the tensor must be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from anvil.lower.sizes import broadcast_stride, reshaped_strides, same, simplify
from anvil.runtime.plan import Size, View

aten = torch.ops.aten

Shape = Sequence[Size]
Remap = Callable[..., list[int | None]]
Window = Callable[..., View | None]


def _same_dims(sizes: Shape, *_: Any) -> list[int | None]:
    return list(range(len(sizes)))


def _permute(sizes: Shape, dims: Sequence[int]) -> list[int | None]:
    return [dim % len(sizes) for dim in dims]


def _transpose(sizes: Shape, first: int, second: int) -> list[int | None]:
    order: list[int | None] = list(range(len(sizes)))
    if sizes:
        first, second = first % len(sizes), second % len(sizes)
        order[first], order[second] = second, first
    return order


def _t(sizes: Shape) -> list[int | None]:
    return list(range(len(sizes)))[::-1]


def _unsqueeze(sizes: Shape, dim: int) -> list[int | None]:
    order: list[int | None] = list(range(len(sizes)))
    order.insert(dim % (len(sizes) + 1), None)
    return order


def _squeeze_all(sizes: Shape) -> list[int | None]:
    return [dim for dim, size in enumerate(sizes) if not same(size, 1)]


def _squeeze(sizes: Shape, dims: int | Sequence[int]) -> list[int | None]:
    wanted = {dim % max(len(sizes), 1) for dim in ([dims] if isinstance(dims, int) else dims)}
    return [dim for dim, size in enumerate(sizes) if dim not in wanted or not same(size, 1)]


def _expand(sizes: Shape, shape: Shape, *_: Any) -> list[int | None]:
    new = len(shape) - len(sizes)
    return [None if dim < new else dim - new for dim in range(len(shape))]


REMAPS: dict[Any, Remap] = {
    aten.alias.default: _same_dims,
    aten.detach.default: _same_dims,
    aten.lift_fresh.default: _same_dims,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze_all,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.expand.default: _expand,
}


def remapped(view: View, dims: Sequence[int | None], shape: Shape) -> View:
    """``view`` where dimension i of ``shape`` is what dimension ``dims[i]`` was; size 1 broadcasts to any size."""
    strides = tuple(
        0 if dim is None else broadcast_stride(view.sizes[dim], view.strides[dim], size)
        for dim, size in zip(dims, shape, strict=True)
    )
    return View(view.buffer, view.offset, tuple(shape), strides)


def _reshape(view: View, shape: Shape, _: Shape) -> View | None:
    strides = reshaped_strides(view.sizes, view.strides, shape)
    return None if strides is None else View(view.buffer, view.offset, tuple(shape), strides)


def _slice(
    view: View, shape: Shape, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> View:
    dim %= len(shape)
    first = _clamped(_from_start(0 if start is None else start, view.sizes[dim]))
    offset = simplify(view.offset + first * view.strides[dim])
    strides = tuple(simplify(s * step) if i == dim else s for i, s in enumerate(view.strides))
    return View(view.buffer, offset, tuple(shape), strides)


def _from_start(position: Size, size: Size) -> Size:
    """A position counted from the end, if negative, as one counted from the start."""
    return simplify(size + position) if isinstance(position, int) and position < 0 else position


def _clamped(position: Size) -> Size:
    return max(position, 0) if isinstance(position, int) else simplify(sympy.Max(position, 0))


def _select(view: View, shape: Shape, dim: int, position: Size) -> View:
    dim %= len(view.sizes)
    offset = simplify(view.offset + _from_start(position, view.sizes[dim]) * view.strides[dim])
    return View(view.buffer, offset, tuple(shape), view.strides[:dim] + view.strides[dim + 1 :])


def _diagonal(view: View, shape: Shape, offset: int = 0, dim1: int = 0, dim2: int = 1) -> View:
    """The diagonal is the last dimension."""
    rank = len(view.sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    start = simplify(view.offset + max(-offset, 0) * view.strides[dim1] + max(offset, 0) * view.strides[dim2])
    kept = tuple(stride for dim, stride in enumerate(view.strides) if dim not in (dim1, dim2))
    step = simplify(view.strides[dim1] + view.strides[dim2])
    return View(view.buffer, start, tuple(shape), (*kept, step))


def _unfold(view: View, shape: Shape, dim: int, size: int, step: Size) -> View:
    """Windows along ``dim``, their elements in a new last dimension."""
    if not view.sizes:
        return View(view.buffer, view.offset, tuple(shape), (1,))
    dim %= len(view.sizes)
    strides = tuple(simplify(s * step) if i == dim else s for i, s in enumerate(view.strides))
    return View(view.buffer, view.offset, tuple(shape), (*strides, view.strides[dim]))


WINDOWS: dict[Any, Window] = {
    aten.view.default: _reshape,
    aten.reshape.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.diagonal.default: _diagonal,
    aten.unfold.default: _unfold,
}
"""Called with the view, the new shape, and the op's arguments after the tensor."""
