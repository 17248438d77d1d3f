"""Images at other sizes: nearest neighbours, linear interpolation, and places that a grid names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.bounds import Setting
from assay.overloads.spec import Form, Given, Overload

SIZES = {"H": (2, 3, 7, 16, 17)}
NO_BYTES = {"u8": "PyTorch rounds the weights of bytes to integers first"}


def sizes_of(x: np.ndarray, output: Sequence[int] | None, factors: Sequence[float] | None, rank: int) -> list[int]:
    if output is not None:
        return list(output)
    assert factors is not None
    return [int(n * f) for n, f in zip(x.shape[-rank:], factors, strict=True)]


def ratio(size: int, new: int, factor: float | None) -> np.float32:
    """Steps in the source per step in the result, as f32: factors here are powers of two."""
    return np.float32(size) / np.float32(new) if factor is None else np.float32(1 / factor)


def nearest(rank: int, shift: float = 0.0) -> Callable[..., np.ndarray]:
    def golden(x, output, *rest):
        factors = factors_of(rest, rank)
        for dim, (new, factor) in enumerate(
            zip(sizes_of(x, output, factors, rank), factors, strict=True), x.ndim - rank
        ):
            step = ratio(x.shape[dim], new, factor)
            places = np.floor((np.arange(new, dtype=np.float32) + np.float32(shift)) * step).astype(np.int64)
            x = np.take(x, np.minimum(places, x.shape[dim] - 1), dim)
        return x

    return golden


def factors_of(rest: Sequence[Any], rank: int) -> list[float | None]:
    """As the last argument's list (``vec``), or one argument per dimension, or none given."""
    if rest and isinstance(rest[-1], list):
        return rest[-1]
    given = [item for item in rest if isinstance(item, float)]
    return given if len(given) == rank else [None] * rank


def shares(size: int, new: int, factor: float | None, corners: bool) -> np.ndarray:
    """[new, size]: the weights of the two nearest elements, f64."""
    i = np.arange(new)
    if corners:
        place = i * ((size - 1) / (new - 1) if new > 1 else 0.0)
    else:
        place = np.maximum((i + 0.5) * (size / new if factor is None else 1 / factor) - 0.5, 0)
    low = np.minimum(place.astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    weights = np.zeros((new, size))
    np.add.at(weights, (i, low), 1 - (place - low))
    np.add.at(weights, (i, high), place - low)
    return weights


def along(x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    for dim, matrix in enumerate(weights, x.ndim - len(weights)):
        x = np.moveaxis(np.tensordot(np.moveaxis(x, dim, -1), matrix.T, 1), -1, dim)
    return x


def all_shares(x, output, rest, rank: int) -> list[np.ndarray]:
    factors = factors_of(rest, rank)
    new = sizes_of(x, output, factors, rank)
    return [shares(*axis, rest[0]) for axis in zip(x.shape[-rank:], new, factors, strict=True)]


def linear(rank: int) -> Callable[..., np.ndarray]:
    return lambda x, output, *rest: along(x, all_shares(x, output, rest, rank))


def linear_bound(rank: int):
    """Per axis a position and a ratio off by 4·u_acc of the axis, which moves weight between neighbours, and three
    roundings: (4·size + 8)·u_acc of all that is near."""

    def bound(setting: Setting, want, x, output, *rest) -> np.ndarray:
        near = [np.asarray(spread(matrix), np.float64) for matrix in all_shares(x, output, rest, rank)]
        size = sum(4 * n + 8 for n in x.shape[-rank:])
        return np.asarray(setting.rounding(want) + size * setting.acc.u * along(np.abs(x), near), np.float64)

    return bound


def spread(weights: np.ndarray) -> np.ndarray:
    """1 for every element with a weight and its neighbours."""
    some = weights != 0
    some[:, 1:] |= weights[:, :-1] != 0
    some[:, :-1] |= weights[:, 1:] != 0
    return some


def form(axes: str, *args: Any) -> Form:
    return Form(f"{axes} {args}", (Given(axes),), args)


def nearest_pair(name: str, rank: int, shift: float = 0.0) -> list[Overload]:
    """``default`` to a size that is given, ``vec`` also by factors."""
    golden, fixed = nearest(rank, shift), ["M", "2", "5", "4", "3"][: 2 + rank]
    dynamic = ["M", "2", "H", *["4", "3"][: rank - 1]]
    target = [8, 3, 6][:rank]
    default = [form(" ".join(fixed), target), form(" ".join(fixed), [10, 8, 6][:rank], *[2.0] * rank)]
    vec = [form(" ".join(dynamic), None, [2.0] * rank), form(" ".join(fixed), target, None)]
    return [
        Overload(f"aten.{name}.default", golden, tuple(default), sizes=SIZES),
        Overload(f"aten.{name}.vec", golden, tuple(vec), sizes=SIZES),
    ]


def linear_pair(name: str, rank: int) -> list[Overload]:
    fixed = ["M", "2", "5", "4", "3"][: 2 + rank]
    dynamic = ["M", "2", "H", *["4", "3"][: rank - 1]]
    target = [8, 3, 7][:rank]
    default = [form(" ".join(fixed), target, corners) for corners in (False, True)]
    vec = [form(" ".join(dynamic), None, False, [2.0] * rank), form(" ".join(fixed), target, True, None)]
    options = {"bound": linear_bound(rank), "kinds": ("ordinary",), "sizes": SIZES, "without": NO_BYTES}
    return [
        Overload(f"aten.{name}.{overload}", linear(rank), tuple(forms), **options)
        for overload, forms in (("default", default), ("vec", vec))
    ]


def places(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """From just outside of one edge to just outside of the other, in steps that every type holds."""
    import torch

    return torch.from_numpy(np.asarray(rng.integers(-19, 20, shape) / 16)).to(dtype)


def sampled(x, grid, interpolation, padding, corners):
    """x [N, C, H, W] at grid [N, h, w, 2] of (x, y), -1 and 1 being the edges; zeros outside, or the edge's element."""
    result = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:3]))
    ends = [grid[..., axis] for axis in (1, 0)]
    at = [(g + 1) / 2 * (n - 1) if corners else ((g + 1) * n - 1) / 2 for g, n in zip(ends, x.shape[2:], strict=True)]
    if padding == 1:
        at = [np.clip(a, 0, n - 1) for a, n in zip(at, x.shape[2:], strict=True)]
    batch = np.arange(x.shape[0])[:, None, None]
    if interpolation == 1:
        return np.moveaxis(picked(x, batch, *(np.round(a).astype(int) for a in at)), -1, 1)
    low = [np.floor(a).astype(int) for a in at]
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = low[0] + dy, low[1] + dx
            share = (1 - np.abs(at[0] - row)) * (1 - np.abs(at[1] - column))
            result += np.moveaxis(picked(x, batch, row, column), -1, 1) * share[:, None]
    return result


def picked(x, batch, row, column):
    """[N, h, w, C], zeros outside."""
    inside = (row >= 0) & (row < x.shape[2]) & (column >= 0) & (column < x.shape[3])
    found = np.moveaxis(x, 1, -1)[batch, np.where(inside, row, 0), np.where(inside, column, 0)]
    return np.where(inside[..., None], found, 0)


def sampled_bound(setting: Setting, want, x, grid, interpolation, padding, corners) -> np.ndarray:
    """A position off by 4·u_acc of the size along each axis, and eight roundings, of the largest element."""
    largest = np.abs(x).max(initial=0)
    allowed = (4 * sum(x.shape[2:]) + 8) * setting.acc.u * largest * (interpolation == 0)
    return np.asarray(setting.rounding(want) + allowed, np.float64)


GRID = (Given("M 2 5 4"), Given("M H 3 2", fill=places))

OVERLOADS = (
    *nearest_pair("upsample_nearest1d", 1),
    *nearest_pair("upsample_nearest2d", 2),
    *nearest_pair("upsample_nearest3d", 3),
    *nearest_pair("_upsample_nearest_exact1d", 1, 0.5),
    *nearest_pair("_upsample_nearest_exact2d", 2, 0.5),
    *nearest_pair("_upsample_nearest_exact3d", 3, 0.5),
    *linear_pair("upsample_linear1d", 1),
    *linear_pair("upsample_bilinear2d", 2),
    *linear_pair("upsample_trilinear3d", 3),
    Overload(
        "aten.grid_sampler_2d.default",
        sampled,
        tuple(
            Form(f"{i} {p} {c}", GRID, (i, p, c))
            for i, p, c in ((0, 0, False), (0, 0, True), (0, 1, False), (1, 0, True))
        ),
        bound=sampled_bound,
        kinds=("ordinary",),
        sizes=SIZES,
    ),
)
