"""Scatters, writes through indices, sorts and medians, in ``anvil::scatter`` and ``anvil::sort_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anvil.graph import data_ops as _ops  # noqa: F401 (registers anvil::scatter, sort_rows, checked, sized)
from anvil.graph.rewrite import same_size
from anvil.lower.decompose.demands import of_shape

aten = torch.ops.aten
_put = torch.ops.anvil.scatter.default
_OUTSIDE = -2  # a place that does not exist: an error of the run; -1 is left out on purpose


def _places(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """For each element of ``index`` [*I]: where x[.., index, ..] stands in row-major order."""
    place = index * _stride(x.shape, dim)
    for other in range(x.ndim):
        if other != dim:
            shape = [1] * x.ndim
            shape[other] = index.shape[other]
            place = place + torch.arange(index.shape[other]).view(shape) * _stride(x.shape, other)
    return torch.where((index >= 0) & (index < x.shape[dim]), place, _OUTSIDE)


def _stride(shape: Sequence[int], dim: int) -> int:
    total = 1
    for size in shape[dim + 1 :]:
        total = total * size
    return total


def _scattered(x: Tensor, dim: int, index: Tensor, src: Tensor | float, reduce: str) -> Tensor:
    """Along ``dim``: src[i][j] goes to [index[i][j]][j] for dim 0. Shapes of rank 0 are vectors of one element."""
    if x.ndim == 0:
        one = src.reshape(1) if isinstance(src, Tensor) else src
        return _scattered(x.reshape(1), 0, index.reshape(1), one, reduce).reshape(())
    if index.ndim == 0:
        index = index.reshape(1)
    index = _fitting(index, x, "self", dim % x.ndim)
    if isinstance(src, Tensor) and src.ndim == index.ndim:
        index = _fitting(index, src, "src", None)
    values = _values(src, index, x.dtype)
    return _put(x, _places(x, index.to(torch.int64), dim % x.ndim), values, reduce)


def _values(src: Tensor | float, index: Tensor, dtype: torch.dtype) -> Tensor:
    """The part of the source that the index names, in the type of the result."""
    if not isinstance(src, Tensor):
        return torch.full(index.shape, src, dtype=dtype)
    if src.ndim == 0:
        src = src.reshape(1)
    for dim in range(index.ndim):
        src = aten.slice.Tensor(src, dim, 0, index.shape[dim])
    return src.to(dtype)


def _fitting(index: Tensor, other: Tensor, name: str, dim: int | None) -> Tensor:
    """``index``; one that is larger than ``other``, but along ``dim``, ends the run with an error."""
    for at, (own, limit) in enumerate(zip(index.shape, other.shape, strict=True)):
        if at != dim and not same_size(own, limit):
            said = f"the index is larger than {name} in dimension {at}, expected at most its size"
            index = torch.ops.anvil.sized(index, limit - own, said)
    return index


_NAMES = {"add": "sum", "multiply": "prod"}


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor | float) -> Tensor:
    return _scattered(x, dim, index, src, "set")


def _scatter_with(x: Tensor, dim: int, index: Tensor, src: Tensor | float, *, reduce: str) -> Tensor:
    return _scattered(x, dim, index, src, _NAMES[reduce])


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(x, dim, index, src, "sum")


_NEUTRAL = {"sum": 0, "prod": 1, "mean": 0}


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Without ``include_self`` the elements that something goes to start anew, from the neutral one."""
    start = x
    if not include_self:
        start = _scattered(x, dim, index, _neutral(reduce, x.dtype), "set")
    if reduce != "mean":
        return _scattered(start, dim, index, src, reduce)
    total = _scattered(start, dim, index, src, "sum")
    counts = torch.ones(x.shape, dtype=torch.int64)
    if not include_self:
        counts = _scattered(counts, dim, index, 0, "set")
    counts = _scattered(counts, dim, index, 1, "sum")
    if x.dtype.is_floating_point:
        return total / counts.to(x.dtype)
    return torch.div(total, counts.to(x.dtype), rounding_mode="floor")


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in _NEUTRAL:
        return _NEUTRAL[reduce]
    if dtype == torch.bool:
        return reduce == "amin"
    lowest = reduce == "amax"
    if dtype.is_floating_point:
        return -torch.inf if lowest else torch.inf
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """``x[i, :, j] = values``; indices count from the end if negative. Bool indices have no shape of their own."""
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return _index_put_mask(x, indices, values, accumulate)
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    given = torch.broadcast_tensors(*(indices[dim].to(torch.int64) for dim in dims))  # type: ignore[union-attr]
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = sum(dim < dims[0] for dim in kept) if together else 0
    shape = [*(x.shape[d] for d in kept[:first]), *given[0].shape, *(x.shape[d] for d in kept[first:])]
    place, valid = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    common = given[0].ndim
    for dim, index in zip(dims, given, strict=True):
        index = torch.where(index < 0, index + x.shape[dim], index)
        own = index.reshape([*index.shape, *[1] * (len(kept) - first)])
        place, valid = place + own * _stride(x.shape, dim), valid & (own >= 0) & (own < x.shape[dim])
    for number, dim in enumerate(kept):
        spot = number if number < first else number + common
        place = place + torch.arange(x.shape[dim]).view([-1 if i == spot else 1 for i in range(len(shape))]) * _stride(
            x.shape, dim
        )
    place = torch.where(valid, place, _OUTSIDE).expand(shape)
    return _put(x, place, values.to(x.dtype).expand(shape), "sum" if accumulate else "set")


def _index_put_mask(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Any:
    """One mask over the first dimensions and one value for all of them is a choice."""
    (mask, *rest) = indices
    if mask is None or any(index is not None for index in rest) or values.numel() != 1:
        return NotImplemented
    mask = mask.to(torch.bool).reshape([*mask.shape, *[1] * (x.ndim - mask.ndim)])
    value = values.to(x.dtype).reshape(())
    return torch.where(mask, x + value if accumulate else value, x)


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _along(x, dim, index, source.to(x.dtype) * alpha if alpha != 1 else source.to(x.dtype), "sum")


def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _along(x, dim, index, source.to(x.dtype), "set")


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    if x.ndim == 0:
        return _index_fill(x.reshape(1), 0, index, value).reshape(())
    shape = [index.numel() if i == dim % x.ndim else size for i, size in enumerate(x.shape)]
    filled = value.to(x.dtype).expand(shape) if isinstance(value, Tensor) else torch.full(shape, value, dtype=x.dtype)
    return _along(x, dim, index, filled, "set")


def _along(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str) -> Tensor:
    """Whole slices of ``source`` along ``dim``, the index vector says where to."""
    if x.ndim == 0:
        return _along(x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce).reshape(())
    dim %= x.ndim
    shape = [1] * x.ndim
    shape[dim] = index.numel()
    wanted = [index.numel() if i == dim else size for i, size in enumerate(x.shape)]
    spread = index.reshape(shape).expand(wanted)
    return _put(x, _places(x, spread.to(torch.int64), dim), of_shape(source, wanted, "the source"), reduce)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of the source, one after the other, where the mask is set; one element stands in for none."""
    x, mask = torch.broadcast_tensors(x, mask)
    count = torch.cumsum(mask.reshape(-1), 0)
    few = "the source has fewer elements than the mask has ones, expected at least as many"
    count = torch.ops.anvil.checked(count, count > source.numel(), few)
    never_empty = torch.cat([source.reshape(-1), source.new_zeros([1])])
    return torch.where(mask, never_empty[torch.where(mask.reshape(-1), count - 1, 0)].reshape(x.shape), x)


def _sorted(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, indices = torch.ops.anvil.sort_rows(x.transpose(dim, -1), descending)
    return values.transpose(dim, -1), indices.transpose(dim, -1)


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sorted(x, dim, descending)


def _sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sorted(x, dim, descending)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The first ``k`` of the order; of equal elements those that come first."""
    values, indices = _sorted(x, dim, largest)
    return (values, indices) if x.ndim == 0 else (values.narrow(dim, 0, k), indices.narrow(dim, 0, k))


def _median(x: Tensor) -> Tensor:
    """The lower of the two in the middle; NaN if there is one, since it stands last, and of no floats."""
    count, values = x.numel(), torch.ops.anvil.sort_rows(x.reshape(-1), False)[0]
    if not x.dtype.is_floating_point:
        return values[torch.full([1], (count - 1) // 2)].reshape(())
    values = torch.cat([values, values.new_full([1], torch.nan)])  # of nothing, -1 is what is picked: this one
    middle, last = (values[torch.full([1], place)] for place in ((count - 1) // 2, count - 1))
    return torch.where(last != last, last, middle).reshape(())


def _one_hot(x: Tensor, num_classes: int = -1) -> Any:
    """A 1 at the place that each element names; how many places there are must be said."""
    if num_classes < 0:
        return NotImplemented
    return aten.scatter.value(x.new_zeros([*x.shape, num_classes]), -1, x.unsqueeze(-1), 1)


DECOMPOSITIONS = {
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter,
    aten.scatter.reduce: _scatter_with,
    aten.scatter.value_reduce: _scatter_with,
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_put.default: _index_put,
    aten.index_add.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.masked_scatter.default: _masked_scatter,
    aten.median.default: _median,
    aten.one_hot.default: _one_hot,
    aten.sort.default: _sort,
    aten.sort.stable: _sort_stable,
    aten.topk.default: _topk,
}
