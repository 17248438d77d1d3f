"""Distances and angles between vectors, norms of a whole tensor, and sums of table rows by bag."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from assay.bounds import Setting, root
from assay.overloads.fill import between
from assay.overloads.spec import Form, Given, Overload

SOME = {axis: (1, 2, 3, 7, 16, 17, 33) for axis in "MNK"}


def lengths(x: np.ndarray, p: float = 2, axis: Any = -1, keepdims: bool = False) -> np.ndarray:
    size = np.abs(x)
    if p == 0:
        return (x != 0).sum(axis, keepdims=keepdims).astype(x.dtype)
    if np.isinf(p):
        return size.max(axis, keepdims=keepdims) if p > 0 else size.min(axis, keepdims=keepdims)
    return (size**p).sum(axis, keepdims=keepdims) ** (1 / p)


def between_rows(x, y, p, mode):
    return lengths(x[..., :, None, :] - y[..., None, :, :], p)


def between_pairs(x, p):
    first, second = np.triu_indices(x.shape[0], 1)
    return lengths(x[first] - x[second], p)


def relative(setting: Setting, want, x, *rest) -> np.ndarray:
    """Differences are rounded once, terms are positive, a root halves: (c√N + 8)·u_acc, and what underflows."""
    lost = (root(x.shape[-1]) + 8) * setting.acc.u * np.abs(want)
    return np.asarray(setting.rounding(want) + lost + np.sqrt(setting.eta), np.float64)


def cosine(x, y, dim=-1):
    x, y = np.broadcast_arrays(x, y)
    sizes = [np.maximum(lengths(item, 2, dim, True), 1e-8) for item in (x, y)]
    return (x / sizes[0] * (y / sizes[1])).sum(dim)


def cosine_bound(setting: Setting, want, x, y, dim=-1) -> np.ndarray:
    """(c√N + 8)·u_acc of both lengths and of a sum whose terms' sizes add up to at most 1."""
    return np.asarray(setting.rounding(want) + 3 * (root(x.shape[dim]) + 8) * setting.acc.u, np.float64)


def whole_norm(x, p=2, dim=None, keepdim=False, dtype=None):
    return lengths(x, p, None if dim is None else tuple(dim), keepdim)


def norm_bound(setting: Setting, want, x, p=2, dim=None, keepdim=False, dtype=None) -> np.ndarray:
    """All terms are positive: (c√N + 8)·u_acc relative."""
    count = x.size if dim is None else int(np.prod([x.shape[d] for d in dim]))
    return np.asarray(setting.rounding(want) + (root(count) + 8) * setting.acc.u * np.abs(want), np.float64)


def bags(table, indices, offsets, mode):
    ends = [*offsets[1:], len(indices)]
    rows = [table[indices[a:b]].sum(0) / (max(b - a, 1) if mode else 1) for a, b in zip(offsets, ends, strict=True)]
    return np.stack(rows)


def bags_bound(setting: Setting, want, table, indices, offsets, mode) -> np.ndarray:
    size = bags(np.abs(table), indices, offsets, mode)
    return np.asarray(setting.rounding(want) + (root(len(indices)) + 2) * setting.acc.u * size, np.float64)


def starts(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rising from 0; two may be equal, and the bag between them empty."""
    rising = np.concatenate([[0], np.sort(rng.integers(0, 9, shape[0] - 1))])
    return torch.from_numpy(np.broadcast_to(rising.reshape(-1, *[1] * (len(shape) - 1)), shape).copy())


#: Offsets beyond the end are not refused: such a bag is empty.
BAGS = (Given("7 N"), Given("9", "i64", between(0, 7)), Given("4", "i64", starts, index=False))
POWERS = (2.0, 1.0, 3.0, float("inf"), 0.0)
VECTORS = {"bound": relative, "kinds": ("ordinary",), "sizes": SOME}
NORMS = {"bound": norm_bound, "kinds": ("ordinary", "positive"), "sizes": SOME}
BAG = {
    "bound": bags_bound,
    "kinds": ("ordinary",),
    "call": lambda op, table, indices, offsets, mode: op(
        table, indices.contiguous(), offsets.contiguous(), False, mode
    )[0],
}


def matrix(*args: Any, **kwargs: Any) -> Form:
    return Form(f"{args} {kwargs or ''}".strip(), (Given(),), args, kwargs)


OVERLOADS = (
    Overload(
        "aten._cdist_forward.default",
        between_rows,
        (
            *(Form(f"order {p}", (Given("M K"), Given("N K")), (p, None)) for p in POWERS),
            Form("batched", (Given("2 M K"), Given("2 N K")), (2.0, 2)),
        ),
        **VECTORS,
    ),
    Overload(
        "aten._pdist_forward.default",
        between_pairs,
        tuple(Form(f"order {p}", (Given("5 K"),), (p,)) for p in POWERS[:4]),
        call=lambda op, x, p: op(x.contiguous(), p),
        **VECTORS,
    ),
    Overload(
        "aten.cosine_similarity.default",
        cosine,
        tuple(Form(f"along {dim}", (Given(), Given()), (dim,)) for dim in (1, 0)),
        bound=cosine_bound,
        kinds=("ordinary", "positive"),
        sizes=SOME,
    ),
    Overload("aten._embedding_bag.default", bags, tuple(Form(f"mode {m}", BAGS, (m,)) for m in (0, 1)), **BAG),
    Overload(
        "aten._embedding_bag_forward_only.default", bags, tuple(Form(f"mode {m}", BAGS, (m,)) for m in (0, 1)), **BAG
    ),
    Overload("aten.norm.Scalar", whole_norm, (matrix(2), matrix(1), matrix(3.0)), **NORMS),
    Overload("aten.norm.ScalarOpt_dim", whole_norm, (matrix(2, [1]), matrix(1, [0], True), matrix(2, [0, 1])), **NORMS),
    Overload("aten.norm.ScalarOpt_dtype", whole_norm, (matrix(2, dtype=torch.float64),), **NORMS),
    Overload("aten.norm.ScalarOpt_dim_dtype", whole_norm, (matrix(2, [1], False, dtype=torch.float64),), **NORMS),
)
