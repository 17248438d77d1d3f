"""Convolutions in one to three dimensions, transposed ones too, and the sum of overlapping columns."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from assay.overloads.bounds import contraction
from assay.overloads.spec import Form, Given, Overload


def columns(size: int, kernel: int, stride: int, dilation: int) -> int:
    """How many places a window of ``kernel`` has in a padded axis of ``size``."""
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def window(offset: int, count: int, stride: int, dilation: int) -> slice:
    """Where element ``offset`` of the kernel meets a padded axis, over all places of the window."""
    return slice(offset * dilation, offset * dilation + stride * (count - 1) + 1, stride)


def convolution(x, w, *rest):
    """x [B, C, ...], w [O, C/groups, ...] or, transposed, [C, O/groups, ...], maybe b [O]; then the constants."""
    b = rest[0] if isinstance(rest[0], np.ndarray) else None
    stride, padding, dilation, transposed, extra, groups = rest[-6:]
    summed = _transposed if transposed else _direct
    y = summed(x, w, stride, padding, dilation, extra, groups)
    return y if b is None else y + b.reshape(-1, *[1] * (x.ndim - 2))


def _direct(x, w, stride, padding, dilation, extra, groups):
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    kernel = w.shape[2:]
    counts = [columns(*axis) for axis in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *counts), x.dtype)
    x = x.reshape(x.shape[0], groups, w.shape[1], *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    for place in product(*map(range, kernel)):
        met = tuple(window(*axis) for axis in zip(place, counts, stride, dilation, strict=True))
        y += np.einsum("bgc...,goc->bgo...", x[(..., *met)], w[(..., *place)])
    return y.reshape(y.shape[0], -1, *counts)


def _transposed(x, w, stride, padding, dilation, extra, groups):
    counts, kernel = x.shape[2:], w.shape[2:]
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in zip(counts, stride, dilation, kernel, extra, strict=True)
    ]
    y = np.zeros((x.shape[0], groups, w.shape[1], *full), x.dtype)
    x = x.reshape(x.shape[0], groups, -1, *counts)
    w = w.reshape(groups, -1, *w.shape[1:])
    for place in product(*map(range, kernel)):
        met = tuple(window(*axis) for axis in zip(place, counts, stride, dilation, strict=True))
        y[(..., *met)] += np.einsum("bgc...,gco->bgo...", x, w[(..., *place)])
    kept = tuple(slice(p, n - p) for p, n in zip(padding, full, strict=True))
    return y.reshape(y.shape[0], -1, *full)[(..., *kept)]


def plain(x, w, *rest):
    """As conv1d and conv2d take the constants."""
    *b, stride, padding, dilation, groups = rest
    return convolution(x, w, *b, stride, padding, dilation, False, [0] * len(stride), groups)


def terms(x, w, *rest) -> int:
    return prod(w.shape[1:]) + 1


def bias_or_none(op: Any, x: Any, w: Any, *rest: Any) -> Any:
    return op(x, w, *(rest if hasattr(rest[0], "shape") else (None, *rest)))


def folded(x, output, kernel, dilation, padding, stride):
    """x [B, C·kernel, places] summed into [B, C, ...output]."""
    full = [n + 2 * p for n, p in zip(output, padding, strict=True)]
    counts = [columns(*axis) for axis in zip(full, kernel, stride, dilation, strict=True)]
    y = np.zeros((x.shape[0], x.shape[1] // prod(kernel), *full), x.dtype)
    x = x.reshape(*y.shape[:2], *kernel, *counts)
    for place in product(*map(range, kernel)):
        met = tuple(window(*axis) for axis in zip(place, counts, stride, dilation, strict=True))
        y[(..., *met)] += x[(slice(None), slice(None), *place)]
    return y[(..., *(slice(p, p + n) for p, n in zip(padding, output, strict=True)))]


def form(axes: str, *args: Any) -> Form:
    return Form(f"{axes} {args}", tuple(map(Given, axes.split("|"))), args)


CHECKED = {
    "call": bias_or_none,
    "kinds": ("ordinary", "whole"),
    "sizes": {"B": (1, 2, 3), "H": (1, 2, 7, 16, 17)},
}

OVERLOADS = (
    Overload(
        "aten.convolution.default",
        convolution,
        (
            form("B 4 H 6|6 4 3 3|6", [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
            form("B 4 7 9|6 2 3 2", [2, 3], [1, 1], [1, 2], False, [0, 0], 2),
            form("B 3 H 7|6 1 3 3|6", [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
            form("B 3 8|5 3 3", [2], [1], [1], False, [0], 1),
            form("B 2 3 H 4|3 2 2 3 1", [1, 1, 1], [1, 1, 0], [1, 1, 1], False, [0, 0, 0], 1),
            form("B 4 H 5|4 3 3 2|6", [2, 1], [1, 0], [1, 1], True, [1, 0], 2),
            form("B 3 H|3 2 3", [2], [1], [1], True, [0], 1),
        ),
        bound=contraction(convolution, terms),
        **CHECKED,
    ),
    Overload(
        "aten.conv1d.default",
        plain,
        (form("B 4 H|6 4 3|6", [1], [1], [1], 1), form("B 4 H|4 1 3", [1], [2], [2], 4)),
        bound=contraction(plain, terms),
        **CHECKED,
    ),
    Overload(
        "aten.conv2d.default",
        plain,
        (form("B 4 H 6|6 4 3 3|6", [1, 1], [1, 1], [1, 1], 1), form("B 4 6 5|2 2 3 2", [2, 2], [1, 0], [1, 1], 2)),
        bound=contraction(plain, terms),
        **CHECKED,
    ),
    Overload(
        "aten.col2im.default",
        folded,
        (
            form("B 12 16", [5, 6], [2, 3], [1, 1], [0, 0], [1, 1]),
            form("B 8 12", [6, 5], [2, 2], [1, 2], [1, 1], [2, 2]),
        ),
        bound=contraction(folded, lambda x, output, kernel, *rest: prod(kernel)),
        kinds=("ordinary", "whole"),
    ),
)
