"""Elements picked and placed by index tensors, and put in order. Exact but for sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from assay.bounds import Setting
from assay.overloads.fill import between
from assay.overloads.spec import Form, Given, Overload

#: Dimensions that indices run over have fixed sizes, so that every index drawn exists.
X = Given("M 7")
WITHIN = Given("M N", "i64", between(0, 7))
FROM_END = Given("N", "i64", between(-7, 7))
VECTOR = Given("N", "i64", between(0, 7))
MASK = Given("M 7", "bool")


def different(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """No place twice along the axis of size 4: what a plain scatter does with two is not defined."""
    axis = shape.index(4)
    places = rng.random([7 if i == axis else size for i, size in enumerate(shape)]).argsort(axis)
    return torch.from_numpy(np.take(places, range(4), axis))


ONCE = Given("M 4", "i64", different)
ONCE_VECTOR = Given("4", "i64", different)
VALUES = Given("M 4")


def form(title: str, *tensors: Given, args: tuple[Any, ...] = (), **kwargs: Any) -> Form:
    return Form(title, tensors, args, kwargs)


def of(name: str, golden: Callable[..., Any], *forms: Form, **options: Any) -> Overload:
    return Overload(f"aten.{name}", golden, forms, **options)


def dim_first(op: Any, x: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
    """op(x, dim, index, *others): tensors come first here, then the dimension, then other constants."""
    tensors = [item for item in rest if isinstance(item, torch.Tensor)]
    constants = [item for item in rest if not isinstance(item, torch.Tensor)]
    return op(x, constants[0], *tensors, *constants[1:], **kwargs)


def placed(combine: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    """The golden of a scatter, element by element."""

    def golden(x: np.ndarray, index: np.ndarray, *rest: Any, **_: Any) -> np.ndarray:
        tensors = [item for item in rest if isinstance(item, np.ndarray)]
        dim, *constants = [item for item in rest if not isinstance(item, np.ndarray)]
        result = np.array(x)
        for at in np.ndindex(*index.shape):
            to = list(at)
            to[dim] = index[at]
            result[tuple(to)] = combine(result[tuple(to)], tensors[0][at] if tensors else constants[0])
        return result

    return golden


def add(old: Any, new: Any) -> Any:
    return old | new if isinstance(old, np.bool_) else old + new


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": add,
    "prod": lambda a, b: a & b if isinstance(a, np.bool_) else a * b,
    "amax": np.maximum,
    "amin": np.minimum,
}


def reduced(
    x: np.ndarray, index: np.ndarray, src: np.ndarray, dim: int, reduce: str, include_self: bool = True
) -> np.ndarray:
    result, seen = np.array(x), np.zeros(x.shape, np.int64)
    start = REDUCTIONS["sum" if reduce == "mean" else reduce]
    for at in np.ndindex(*index.shape):
        to = list(at)
        to[dim] = index[at]
        place = tuple(to)
        fresh = not include_self and not seen[place]
        result[place] = src[at] if fresh else start(result[place], src[at])
        seen[place] += 1
    if reduce != "mean":
        return result
    count = np.maximum(seen + include_self, 1)
    return result / count if np.issubdtype(x.dtype, np.floating) else (result // count).astype(x.dtype)


def sums(setting: Setting, want: np.ndarray, x: np.ndarray, *rest: Any, **_: Any) -> np.ndarray:
    """Each of at most N terms is added in the type of the result, which rounds every time: (N + 2)·u_out·Σ|terms|,
    where a partial product or sum is no larger than the one over absolute values."""
    largest = np.abs(np.asarray(x, np.float64)).max(initial=0.0)
    sources = [np.abs(np.asarray(r, np.float64)) for r in rest if isinstance(r, np.ndarray) and r.dtype.kind == "f"]
    total = largest + sum(float(source.sum(-1).max(initial=0.0)) for source in sources)
    terms = max((r.shape[-1] for r in rest if isinstance(r, np.ndarray) and r.ndim), default=1)
    return np.full(want.shape, (terms + 2) * setting.out.u * total) + setting.eta


def put(op: Any, x: torch.Tensor, index: torch.Tensor, values: torch.Tensor, *rest: Any) -> Any:
    return op(x, [index], values, *rest)


def put_golden(x: np.ndarray, index: np.ndarray, values: np.ndarray, accumulate: bool = False) -> np.ndarray:
    result = np.array(x)
    for at in range(index.shape[0]):
        result[index[at]] = add_rows(result[index[at]], values[at]) if accumulate else values[at]
    return result


def add_rows(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return old | new if old.dtype == bool else old + new


def along(combine: Callable[[Any, Any], Any], x: np.ndarray, index: np.ndarray, values: Any, dim: int) -> np.ndarray:
    result = np.array(x)
    rows = np.moveaxis(result, dim, 0)
    source = np.moveaxis(values, dim, 0)
    for at, to in enumerate(index):
        rows[to] = combine(rows[to], source[at])
    return result


def filled(x: np.ndarray, index: np.ndarray, dim: int, value: float) -> np.ndarray:
    result = np.array(x)
    np.moveaxis(result, dim, 0)[index] = value
    return result


def filled_with(x: np.ndarray, index: np.ndarray, value: np.ndarray, dim: int) -> np.ndarray:
    return filled(x, index, dim, value)  # type: ignore[arg-type]


def masked(x: np.ndarray, mask: np.ndarray, source: np.ndarray) -> np.ndarray:
    result = np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, mask.shape)))
    chosen = np.broadcast_to(mask, result.shape)
    result[chosen] = source.reshape(-1)[: chosen.sum()]
    return result


def key(x: np.ndarray, descending: bool) -> np.ndarray:
    """Sorting these ascending sorts ``x``: NaN after everything, or before it if ``descending``. Ranks, so exact."""
    ranks = np.unique(np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x, return_inverse=True)[1]
    ranks = ranks.reshape(x.shape) * 2 + (np.isnan(x) if x.dtype.kind == "f" else 0)
    return -ranks if descending else ranks


def ordered(x: np.ndarray, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    at = np.argsort(key(x, descending), axis=dim, kind="stable")
    return np.take_along_axis(x, at, dim), at


def first(x: np.ndarray, dim: int, k: int, largest: bool = True) -> tuple[np.ndarray, np.ndarray]:
    values, at = ordered(x, dim, largest)
    return np.take(values, range(k), dim), np.take(at, range(k), dim)


def chosen(op: Any, x: torch.Tensor, dim: int, **constants: Any) -> Any:
    """The values twice: as returned, and as the indices pick them. PyTorch leaves the order of equal ones open."""
    values, at = op(x, dim=dim, **constants)
    return values, x.gather(dim, at)


def twice(golden: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim, **constants: (golden(x, dim=dim, **constants)[0],) * 2


def zero_or_one(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(rng.integers(0, 2, shape)).to(dtype)


PAIR = (form("rows", X, WITHIN, args=(1,)),)
OVERLOADS = (
    of("gather.default", lambda x, i, dim: np.take_along_axis(x, i, dim), *PAIR, call=dim_first),
    of(
        "index_select.default",
        lambda x, i, dim: np.take(x, i, dim),
        form("columns", X, VECTOR, args=(1,)),
        form("rows", Given("7 M"), VECTOR, args=(0,)),
        call=dim_first,
    ),
    of(
        "index.Tensor",
        lambda x, i: x[:, i],
        form("columns", X, FROM_END),
        form("matrix of indices", X, Given("N 2", "i64", between(-7, 7))),
        call=lambda op, x, i: op(x, [None, i]),
    ),
    of(
        "take.default",
        lambda x, i: x.reshape(-1)[i],
        form("from a matrix", Given("3 5"), Given("M N", "i64", between(-15, 15))),
    ),
    of("embedding.default", lambda w, i: w[i], form("rows", Given("7 M"), Given("N K", "i64", between(0, 7)))),
    of(
        "index_put.default",
        put_golden,
        form("rows", Given("7 M"), ONCE_VECTOR, Given("4 M")),
        form("add up", Given("7 M"), FROM_END, Given("N M"), args=(True,)),
        call=put,
        bound=sums,
        kinds=("ordinary",),
    ),
    of("scatter.src", placed(lambda old, new: new), form("rows", X, ONCE, VALUES, args=(1,)), call=dim_first),
    of("scatter.value", placed(lambda old, new: new), form("rows", X, WITHIN, args=(1, 1)), call=dim_first),
    of(
        "scatter.reduce",
        placed(add),
        form("add", X, WITHIN, Given("M N"), args=(1,), reduce="add"),
        call=dim_first,
        bound=sums,
        kinds=("ordinary",),
    ),
    of(
        "scatter.value_reduce",
        placed(lambda old, new: add(old, old.dtype.type(new))),
        form("add", X, WITHIN, args=(1, 2), reduce="add"),
        call=dim_first,
        kinds=("whole",),
    ),
    of(
        "index_fill.int_Tensor",
        filled_with,
        form("columns", X, VECTOR, Given("", fill=zero_or_one), args=(1,)),
        call=dim_first,
    ),
    of(
        "one_hot.default",
        lambda i, classes: np.eye(classes, dtype=np.int64)[i],
        Form("of 7", (Given("M N", "i64", between(0, 7)),), (7,), types=("i64",)),
    ),
    of(
        "scatter_add.default",
        placed(add),
        form("rows", X, WITHIN, Given("M N"), args=(1,)),
        call=dim_first,
        bound=sums,
        kinds=("ordinary",),
    ),
    of(
        "scatter_reduce.two",
        reduced,
        *(
            form(f"{name}{'' if own else ' anew'}", X, WITHIN, Given("M N"), args=(1, name), include_self=own)
            for name in ("sum", "amax", "amin", "mean")
            for own in (True, False)
        ),
        call=dim_first,
        bound=sums,
        kinds=("ordinary",),
        without={"bool": "PyTorch has no mean of bool"},
    ),
    of(
        "index_add.default",
        lambda x, i, v, dim: along(add_rows, x, i, v, dim),
        form("columns", X, VECTOR, Given("M N"), args=(1,)),
        call=dim_first,
        bound=sums,
        kinds=("ordinary",),
    ),
    of(
        "index_copy.default",
        lambda x, i, v, dim: along(lambda old, new: new, x, i, v, dim),
        form("columns", X, ONCE_VECTOR, Given("M 4"), args=(1,)),
        call=dim_first,
    ),
    of("index_fill.int_Scalar", filled, form("columns", X, VECTOR, args=(1, 1)), call=dim_first),
    of(
        "masked_fill.Scalar",
        lambda x, mask, value: np.where(mask, x.dtype.type(value), x),
        form("1", X, MASK, args=(1,)),
        form("a row", X, Given("7", "bool"), args=(0,)),
    ),
    of(
        "masked_fill.Tensor",
        lambda x, mask, value: np.where(mask, value, x),
        Form("a number", (X, MASK, Given("", fill=zero_or_one))),
    ),
    of(
        "masked_scatter.default",
        masked,
        form("equal", X, MASK, Given("M 7")),
        form("a row", X, Given("7", "bool"), Given("M 9")),
    ),
    of(
        "sort.default",
        twice(ordered),
        form("last", Given("M N"), dim=-1),
        form("first, down", Given("M N"), dim=0, descending=True),
        call=chosen,
    ),
    of(
        "sort.stable",
        ordered,
        form("last", Given("M N"), stable=True),
        form("down", Given("M 3 N"), stable=True, dim=1, descending=True),
        form("ties", Given("M N", fill=between(0, 3)), stable=True),
    ),
    of(
        "topk.default",
        twice(first),
        form("3 of 9", Given("M 9"), k=3, dim=-1),
        form("smallest", Given("M 9"), k=2, dim=1, largest=False),
        call=chosen,
    ),
    of("argsort.stable", lambda x, **kw: ordered(x, **kw)[1], form("last", Given("M N"), stable=True)),
)
