"""Pooling in one to three dimensions: averages and maxima over windows, given or worked out from the result's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import ceil, floor, prod
from typing import Any

import numpy as np

from assay.overloads.bounds import contraction
from assay.overloads.spec import Form, Given, Overload

Places = list[tuple[int, int, int]]  # first and one past the last element, and the number of elements counted


def places(size: int, kernel: int, stride: int, padding: int, dilation: int, rounded_up: bool) -> Places:
    """The windows along one axis. Rounded up, the last one may reach beyond the end, but begins inside."""
    span = dilation * (kernel - 1) + 1
    count = (ceil if rounded_up else floor)((size + 2 * padding - span) / stride) + 1
    if rounded_up and (count - 1) * stride >= size + padding:
        count -= 1
    starts = [i * stride - padding for i in range(count)]
    return [(start, start + span, min(start + span, size + padding) - start) for start in starts]


def adaptive(size: int, count: int) -> Places:
    """``count`` windows that cover an axis, of nearly equal size."""
    ends = [(i * size // count, ceil((i + 1) * size / count)) for i in range(count)]
    return [(first, last, last - first) for first, last in ends]


def windows(
    x: np.ndarray, axes: Sequence[Places]
) -> Iterator[tuple[tuple[int, ...], tuple[tuple[int, int, int], ...]]]:
    """Position of every result and its window."""
    for position in product(*(range(len(axis)) for axis in axes)):
        yield position, tuple(axis[i] for axis, i in zip(axes, position, strict=True))


def averaged(x: np.ndarray, axes: Sequence[Places], include_pad: bool = True, divisor: int | None = None) -> np.ndarray:
    rank = len(axes)
    y = np.zeros((*x.shape[:-rank], *map(len, axes)), x.dtype)
    for position, spans in windows(x, axes):
        inside = tuple(slice(max(a, 0), min(b, n)) for (a, b, _), n in zip(spans, x.shape[-rank:], strict=True))
        part = x[(..., *inside)]
        count = divisor or prod(c for _, _, c in spans) if include_pad else prod(part.shape[-rank:])
        total = part.sum(tuple(range(-rank, 0)), dtype=x.dtype)
        y[(..., *position)] = total / count if np.issubdtype(x.dtype, np.floating) else np.trunc(total / count)
    return y


def average(x, kernel, stride, padding, rounded_up=False, include_pad=True, divisor=None):
    sizes = x.shape[-len(kernel) :]
    axes = [places(n, k, s, p, 1, rounded_up) for n, k, s, p in zip(sizes, kernel, stride, padding, strict=True)]
    return averaged(x, axes, include_pad, divisor)


def adaptive_average(x, output):
    return averaged(x, [adaptive(*axis) for axis in zip(x.shape[-len(output) :], output, strict=True)])


def largest(x: np.ndarray, axes: Sequence[Places], dilation: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Values, and where they are in the flattened axes: the first of equal ones."""
    rank = len(axes)
    sizes = x.shape[-rank:]
    at = np.arange(prod(sizes)).reshape(sizes)
    shape = (*x.shape[:-rank], *map(len, axes))
    values, found = np.zeros(shape, x.dtype), np.zeros(shape, np.int64)
    for position, spans in windows(x, axes):
        steps = zip(spans, dilation, sizes, strict=True)
        inside = np.ix_(*([i for i in range(a, b, d) if 0 <= i < n] for (a, b, _), d, n in steps))
        part = x[(..., *inside)]
        part = part.reshape(*x.shape[:-rank], prod(part.shape[-rank:]))
        best = part.argmax(-1)
        values[(..., *position)] = np.take_along_axis(part, best[..., None], -1)[..., 0]
        found[(..., *position)] = at[inside].reshape(-1)[best]
    return values, found


def maximum(x, kernel, stride, padding, dilation, rounded_up=False):
    axes = [
        places(*axis, rounded_up)
        for axis in zip(x.shape[-len(kernel) :], kernel, stride, padding, dilation, strict=True)
    ]
    return largest(x, axes, dilation)


def adaptive_maximum(x, output):
    axes = [adaptive(*axis) for axis in zip(x.shape[-len(output) :], output, strict=True)]
    return largest(x, axes, [1] * len(output))


def form(axes: str, *args: Any) -> Form:
    return Form(f"{axes} {args}", (Given(axes),), args)


def of(name: str, golden: Callable[..., Any], *forms: Form, terms: Callable[..., int] | None = None) -> Overload:
    """``terms``: how many elements one result sums and divides; None where it picks one."""
    bound = {} if terms is None else {"bound": contraction(golden, terms)}
    kinds = ("ordinary", "whole")
    return Overload(f"aten.{name}", golden, forms, kinds=kinds, sizes={"H": (2, 7, 16, 17)}, **bound)


def kernel_size(x, kernel, *rest) -> int:
    return prod(kernel) + 1


def share(rank: int, x, *rest) -> int:
    return prod(x.shape[-rank:]) + 1


OVERLOADS = (
    of(
        "avg_pool1d.default",
        average,
        form("M 3 8", [3], [2], [1]),
        form("M 3 H", [3], [1], [1]),
        form("M 7", [2], [2], [0], True),
        terms=kernel_size,
    ),
    of(
        "avg_pool2d.default",
        average,
        form("M 3 8 6", [3, 2], [2, 2], [1, 0]),
        form("M 3 H 6", [3, 2], [1, 2], [1, 0]),
        form("M 3 7 8", [3, 3], [2, 3], [1, 1], True),
        form("M 3 7 8", [3, 3], [2, 2], [1, 1], False, False),
        form("M 3 7 8", [2, 2], [2, 2], [0, 0], False, True, 3),
        terms=kernel_size,
    ),
    of("avg_pool3d.default", average, form("M 2 5 4 5", [3, 2, 2], [1, 2, 1], [1, 0, 1]), terms=kernel_size),
    of("adaptive_avg_pool1d.default", adaptive_average, form("M 3 7", [3]), terms=partial(share, 1)),
    of(
        "_adaptive_avg_pool2d.default",
        adaptive_average,
        form("M 3 7 6", [3, 4]),
        form("M 2 H 5", [1, 1]),
        terms=partial(share, 2),
    ),
    of("_adaptive_avg_pool3d.default", adaptive_average, form("M 2 5 4 3", [2, 3, 3]), terms=partial(share, 3)),
    of(
        "max_pool2d_with_indices.default",
        maximum,
        form("M 3 8 6", [3, 2], [2, 2], [1, 0], [1, 1]),
        form("M 3 9 8", [2, 3], [2, 3], [0, 1], [2, 1], True),
    ),
    of("max_pool3d_with_indices.default", maximum, form("M 2 H 4 5", [3, 2, 2], [1, 2, 1], [1, 0, 1], [1, 1, 1])),
    of("adaptive_max_pool2d.default", adaptive_maximum, form("M 3 7 6", [3, 4])),
    of("adaptive_max_pool3d.default", adaptive_maximum, form("M 2 5 4 3", [2, 3, 3])),
)
