"""Sums, means, extremes, statistics, positions of extremes, running sums: over every choice of dimensions."""

from __future__ import annotations

import numpy as np
import torch

from assay.bounds import Setting, root
from assay.overloads.fill import ordinary
from assay.overloads.spec import Form, Given, Overload

KINDS = ("ordinary", "whole", "special", "positive")
SOME = {axis: (1, 2, 3, 7, 15, 16, 17, 31, 33, 100) for axis in "MNK"}  # without an element there is no extreme
MATRIX = (Given(),)
CUBE = (Given("K M N"),)


def is_float(x) -> bool:
    return np.issubdtype(x.dtype, np.floating)


def axes(x, dim):
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(d % max(x.ndim, 1) for d in dims) if dims and x.ndim else tuple(range(x.ndim))


def count(x, dim) -> int:
    return int(np.prod([x.shape[d] for d in axes(x, dim)]))


def over(x, dim=None, keepdim=False):
    return {"axis": axes(x, dim), "keepdims": keepdim}


def wide(x, dtype=None):
    """Integers as int64, which is what PyTorch sums them in; what is asked for first."""
    if dtype is not None:
        x = x.astype(
            {torch.float64: np.float64, torch.float32: np.float64, torch.int32: np.int32, torch.int64: np.int64}[dtype]
        )
    return x if is_float(x) or dtype is not None else x.astype(np.int64)


def total(x, dim=None, keepdim=False, dtype=None):
    x = wide(x, dtype)
    return x.sum(**over(x, dim, keepdim), dtype=x.dtype)


def sum_bound(setting: Setting, want, x, dim=None, keepdim=False, dtype=None) -> np.ndarray:
    """gamma(N)·u_acc·Σ|x| and one rounding."""
    size = np.abs(np.where(np.isfinite(x), x, 0)).sum(**over(x, dim, keepdim))
    return np.asarray(setting.rounding(want) + root(count(x, dim)) * setting.acc.u * size, np.float64)


def mean(x, dim=None, keepdim=False, dtype=None):
    return total(x if is_float(x) else x.astype(np.float64), dim, keepdim) / count(x, dim)


def mean_bound(setting: Setting, want, x, dim=None, keepdim=False, dtype=None) -> np.ndarray:
    """The sum's, over N, and a division."""
    allowed = sum_bound(setting, want, x, dim, keepdim) / max(count(x, dim), 1)
    return np.asarray(allowed + setting.rounding(want) + setting.acc.u * np.abs(want), np.float64)


def product(x, dim=None, keepdim=False, dtype=None):
    x = wide(x, dtype)
    return x.prod(**over(x, dim, keepdim), dtype=x.dtype)


def product_bound(setting: Setting, want, x, dim=None, keepdim=False, dtype=None) -> np.ndarray:
    """Each product adds u_acc."""
    return np.asarray(setting.rounding(want) + count(x, dim) * setting.acc.u * np.abs(want), np.float64)


def near_one(rng, shape, dtype):
    """Products of a thousand of these neither overflow nor vanish; integers wrap."""
    if dtype.is_floating_point:
        return torch.from_numpy(np.asarray(1 + 0.01 * rng.standard_normal(shape))).to(dtype)
    return ordinary(rng, shape, dtype)


def variance(x, dim=None, correction=1, keepdim=False):
    where = over(x, dim, keepdim)
    centred = x - x.mean(**over(x, dim, True))
    return (centred**2).sum(**where) / max(count(x, dim) - correction, 0)


def _variance_bound(setting: Setting, want, x, dim, correction, keepdim):
    """(c√N + 8)·u_acc·v, and the square of the mean's own error, c√N·u_acc·mean|x|, times N / (N - correction)."""
    n = max(count(x, dim), 1)
    mean_size = np.abs(x).mean(**over(x, dim, keepdim))
    shift = (root(n) * setting.acc.u * mean_size) ** 2 * n / max(n - correction, 1)
    return np.asarray(setting.rounding(want) + (root(n) + 8) * setting.acc.u * np.abs(want) + shift, np.float64)


def variance_bound(setting: Setting, want, x, dim=None, correction=1, keepdim=False) -> np.ndarray:
    return _variance_bound(setting, want, x, dim, correction, keepdim)


def deviation(x, dim=None, correction=1, keepdim=False):
    return np.sqrt(variance(x, dim, correction, keepdim))


def deviation_bound(setting: Setting, want, x, dim=None, correction=1, keepdim=False) -> np.ndarray:
    """Of a root: half the relative error, or the root of the error where the variance is 0."""
    error = _variance_bound(setting, want * want, x, dim, correction, keepdim)
    half = np.where(want > 0, error / np.maximum(want, 1e-300), np.sqrt(error))
    return np.asarray(setting.rounding(want) + np.minimum(half, np.sqrt(error)), np.float64)


def with_mean(statistic):
    def golden(x, dim=None, correction=1, keepdim=False):
        return statistic(x, dim, correction, keepdim), x.mean(**over(x, dim, keepdim))

    return golden


def with_mean_bound(bound):
    def both(setting: Setting, want, x, dim=None, correction=1, keepdim=False):
        mine = statistic_of(bound)(x, dim, correction, keepdim)
        average = x.mean(**over(x, dim, keepdim))
        return bound(setting, mine, x, dim, correction, keepdim), mean_bound(setting, average, x, dim, keepdim)

    return both


def statistic_of(bound):
    return variance if bound is variance_bound else deviation


def largest(x, dim=None, keepdim=False):
    return x.max(**over(x, dim, keepdim))


def median(x):
    """The lower of the two in the middle; NaN wins."""
    flat = np.sort(x.reshape(-1))  # NaN stands last
    broken = flat.dtype.kind == "f" and np.isnan(flat[-1])
    return flat[-1] if broken else flat[(flat.size - 1) // 2]


def smallest(x, dim=None, keepdim=False):
    return x.min(**over(x, dim, keepdim))


def any_of(x, dim=None, keepdim=False):
    return np.any(x, **over(x, dim, keepdim))


def all_of(x, dim=None, keepdim=False):
    return np.all(x, **over(x, dim, keepdim))


def position(find):
    """The first extreme; the first NaN before everything."""

    def golden(x, dim=None, keepdim=False):
        axis = None if dim is None else dim
        flat = np.ravel(x) if axis is None or x.ndim == 0 else x
        found = find(flat, axis=0 if axis is None or x.ndim == 0 else axis)  # numpy's NaN wins, the first one
        if keepdim:
            return np.expand_dims(found, axis) if axis is not None and x.ndim else np.reshape(found, (1,) * x.ndim)
        return np.asarray(found)

    return golden


def both(extreme, find):
    def golden(x, dim, keepdim=False):
        return extreme(x, dim, keepdim), position(find)(x, dim, keepdim)

    return golden


def running(accumulate):
    def golden(x, dim, dtype=None):
        x = wide(x, dtype)
        return accumulate(x, axis=dim, dtype=x.dtype) if x.ndim else x

    return golden


def running_sum_bound(setting: Setting, want, x, dim, dtype=None) -> np.ndarray:
    """N·u_acc of the sizes so far: a sum in order."""
    size = np.cumsum(np.abs(np.where(np.isfinite(x), x, 0)), axis=dim) if x.ndim else np.abs(x)
    n = x.shape[dim] if x.ndim else 1
    return np.asarray(setting.rounding(want) + min(n, root(n)) * setting.acc.u * size, np.float64)


def running_product_bound(setting: Setting, want, x, dim, dtype=None) -> np.ndarray:
    n = x.shape[dim] if x.ndim else 1
    return np.asarray(setting.rounding(want) + n * setting.acc.u * np.abs(want), np.float64)


def logsumexp(x, dim, keepdim=False):
    top = np.max(x, axis=axes(x, dim), keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    found = top + np.log(np.exp(x - top).sum(axis=axes(x, dim), keepdims=True))
    return found if keepdim else np.squeeze(found, axes(x, dim))


def logsumexp_bound(setting: Setting, want, x, dim, keepdim=False) -> np.ndarray:
    """4 ulp, and (2δ + c√N + 8)·u_acc in the logarithm's argument, δ the largest finite |x - max| that counts: 60."""
    absolute = (2 * 60 + root(count(x, dim)) + 8) * setting.acc.u
    return np.asarray(setting.rounding(want) + 4 * setting.acc.ulp(want) + absolute, np.float64)


def norm(x, order=2, dim=None, keepdim=False, dtype=None):
    where, size = over(x, dim, keepdim), np.abs(x)
    if abs(order) == np.inf:
        return size.max(**where) if order > 0 else size.min(**where)
    if order == 0:
        return (x != 0).sum(**where).astype(x.dtype)
    return (size**order).sum(**where) ** (1 / order)


def norm_bound(setting: Setting, want, x, order=2, dim=None, keepdim=False, dtype=None) -> np.ndarray:
    """All terms are positive: (c√N + 8)·u_acc relative."""
    return np.asarray(setting.rounding(want) + (root(count(x, dim)) + 8) * setting.acc.u * np.abs(want), np.float64)


def dims(*choices, keep=True) -> tuple[Form, ...]:
    """The choices of dimensions of a matrix, then of a cube, then kept ones."""
    matrix = [Form(f"over {d}", MATRIX, (d,)) for d in choices]
    kept = [Form("kept", CUBE, (choices[0], True))] if keep else []
    return (*matrix, Form("cube", CUBE, (choices[0],)), *kept)


LISTS = dims([1], [0], [0, 1], [-1])
ONE = dims(1, 0, -1)
ALL = (Form("matrix", MATRIX), Form("rank 0", (Given(""),)), Form("cube", CUBE))
TYPED = (
    Form("as f64", MATRIX, ([1],), {"dtype": torch.float64}),
    Form("as f32", MATRIX, ([0],), {"dtype": torch.float32}),
)
NEAR = (Given(fill=near_one),)
CORRECTIONS = tuple(
    Form(f"{c} over {d}", g, (d,), {"correction": c, "keepdim": k})
    for c, d, g, k in (
        (1, [1], MATRIX, False),
        (0, [0], MATRIX, True),
        (2, [0, 1], MATRIX, False),
        (1, [1], CUBE, False),
    )
)


def unbiased(x, dim, unbiased, keepdim=False):
    return variance(x, dim, int(unbiased), keepdim)


def unbiased_bound(setting: Setting, want, x, dim, unbiased, keepdim=False) -> np.ndarray:
    return _variance_bound(setting, want, x, dim, int(unbiased), keepdim)


def whole(statistic):
    """Over all elements, with the correction or not."""
    return lambda x, unbiased: statistic(x, None, int(unbiased))


def along(statistic):
    return lambda x, dim, unbiased, keepdim=False: statistic(x, dim, int(unbiased), keepdim)


def whole_bound(bound):
    return lambda setting, want, x, unbiased: bound(setting, want, x, None, int(unbiased))


def along_bound(bound):
    return lambda setting, want, x, dim, unbiased, keepdim=False: bound(setting, want, x, dim, int(unbiased), keepdim)


BOTH = (Form("unbiased", MATRIX, (True,)), Form("biased", CUBE, (False,)))
BOTH_ALONG = (Form("unbiased", MATRIX, ([1], True)), Form("biased", MATRIX, ([0], False, True)))


def unbiased_family() -> list[Overload]:
    """The older spellings, with a flag in the place of the correction."""
    spreads = {"var": (variance, variance_bound), "std": (deviation, deviation_bound)}
    pairs = {f"{name}_mean": (with_mean(f), with_mean_bound(b)) for name, (f, b) in spreads.items()}
    found = []
    for name, (statistic, bound) in {**spreads, **pairs}.items():
        found.append(Overload(f"aten.{name}.default", whole(statistic), BOTH, bound=whole_bound(bound), **STATISTICS))
        if name != "var":
            found.append(
                Overload(f"aten.{name}.dim", along(statistic), BOTH_ALONG, bound=along_bound(bound), **STATISTICS)
            )
    return found


STATISTICS = {"precision": "extended", "kinds": ("ordinary", "positive"), "sizes": SOME}
SCAN = (*dims(1, 0, -1, keep=False), Form("rank 0", (Given(""),), (0,)))

OVERLOADS = (
    *unbiased_family(),
    Overload("aten.sum.default", total, ALL, kinds=KINDS, precision="extended", bound=sum_bound),
    Overload("aten.sum.dim_IntList", total, (*LISTS, *TYPED), kinds=KINDS, precision="extended", bound=sum_bound),
    Overload("aten.mean.default", mean, ALL, kinds=KINDS, precision="extended", bound=mean_bound),
    Overload("aten.mean.dim", mean, (*LISTS, TYPED[0]), kinds=KINDS, precision="extended", bound=mean_bound),
    Overload("aten.prod.default", product, (Form("matrix", NEAR), ALL[1]), kinds=("ordinary",), bound=product_bound),
    Overload(
        "aten.prod.dim_int",
        product,
        tuple(Form(f"over {d}", NEAR, (d, k)) for d, k in ((1, False), (0, True), (-1, False))),
        kinds=("ordinary",),
        bound=product_bound,
    ),
    Overload("aten.amax.default", largest, LISTS, kinds=KINDS, sizes=SOME),
    Overload("aten.amin.default", smallest, LISTS, kinds=KINDS, sizes=SOME),
    Overload("aten.median.default", median, ALL, kinds=KINDS, sizes=SOME),
    Overload("aten.max.default", largest, ALL, kinds=KINDS, sizes=SOME),
    Overload("aten.min.default", smallest, ALL, kinds=KINDS, sizes=SOME),
    Overload("aten.max.dim", both(largest, np.argmax), ONE, kinds=KINDS, sizes=SOME),
    Overload("aten.min.dim", both(smallest, np.argmin), ONE, kinds=KINDS, sizes=SOME),
    Overload("aten.argmax.default", position(np.argmax), (*ONE, *ALL[:2]), kinds=KINDS, sizes=SOME),
    Overload("aten.argmin.default", position(np.argmin), (*ONE, *ALL[:2]), kinds=KINDS, sizes=SOME),
    Overload("aten.any.default", any_of, ALL, kinds=("whole", "special")),
    Overload("aten.any.dim", any_of, ONE, kinds=("whole", "special")),
    Overload("aten.any.dims", any_of, LISTS, kinds=("whole", "special")),
    Overload("aten.all.default", all_of, ALL, kinds=("whole", "special")),
    Overload("aten.all.dim", all_of, ONE, kinds=("whole", "special")),
    Overload("aten.all.dims", all_of, LISTS, kinds=("whole", "special")),
    Overload("aten.var.correction", variance, CORRECTIONS, bound=variance_bound, **STATISTICS),
    Overload(
        "aten.var.dim",
        unbiased,
        (Form("unbiased", MATRIX, ([1], True)), Form("biased", MATRIX, ([0], False, True))),
        bound=unbiased_bound,
        **STATISTICS,
    ),
    Overload("aten.std.correction", deviation, CORRECTIONS, bound=deviation_bound, **STATISTICS),
    Overload(
        "aten.var_mean.correction",
        with_mean(variance),
        CORRECTIONS,
        bound=with_mean_bound(variance_bound),
        **STATISTICS,
    ),
    Overload(
        "aten.std_mean.correction",
        with_mean(deviation),
        CORRECTIONS,
        bound=with_mean_bound(deviation_bound),
        **STATISTICS,
    ),
    Overload(
        "aten.cumsum.default", running(np.cumsum), SCAN, kinds=KINDS, precision="extended", bound=running_sum_bound
    ),
    Overload(
        "aten.cumprod.default",
        running(np.cumprod),
        (*(Form(f"over {d}", NEAR, (d,)) for d in (1, 0)), SCAN[-1]),
        kinds=("ordinary",),
        bound=running_product_bound,
    ),
    Overload(
        "aten.logsumexp.default",
        logsumexp,
        LISTS,
        kinds=("ordinary", "special"),
        sizes=SOME,
        bound=logsumexp_bound,
        promote="float",
    ),
    Overload(
        "aten.linalg_vector_norm.default",
        norm,
        tuple(
            Form(f"order {p} over {d}", MATRIX, (p, d, k))
            for p, d, k in (
                (2, [1], False),
                (1, [0], True),
                (np.inf, None, False),
                (3, [1], False),
                (0, [1], False),
                (-np.inf, [1], False),
            )
        ),
        kinds=("ordinary", "positive"),
        sizes=SOME,
        bound=norm_bound,
    ),
)
