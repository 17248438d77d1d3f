"""Views: other sizes and strides of the same elements. Exact; the result's elements are compared in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from assay.overloads.spec import Form, Given, Overload


def of(name: str, golden: Callable[..., Any], *forms: tuple[str, tuple[Any, ...]], **options: Any) -> Overload:
    """One tensor: (axes, constants) per form."""
    found = tuple(Form(f"{axes or 'rank 0'} {args}", (Given(axes),), args) for axes, args in forms)
    return Overload(f"aten.{name}", golden, found, signed_zero=True, **options)


def unbound(x: np.ndarray, dim: int = 0) -> tuple[np.ndarray, ...]:
    return tuple(np.moveaxis(x, dim, 0))


def cut(x: np.ndarray, size: int, dim: int = 0) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, range(size, x.shape[dim], size), dim))


def cut_at(x: np.ndarray, sizes: list[int], dim: int = 0) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], dim))


def sliced(x: np.ndarray, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> np.ndarray:
    return np.moveaxis(np.moveaxis(x, dim, 0)[start:end:step], 0, dim)


def expanded(x: np.ndarray, shape: list[int]) -> np.ndarray:
    padded = [1] * (len(shape) - x.ndim) + list(x.shape)
    return np.array(np.broadcast_to(x, [old if new == -1 else new for old, new in zip(padded, shape, strict=True)]))


def strided(x: np.ndarray, size: list[int], stride: list[int], offset: int = 0) -> np.ndarray:
    flat = np.ascontiguousarray(x).reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(flat, size, [step * flat.itemsize for step in stride])


def windows(x: np.ndarray, dim: int, size: int, step: int) -> np.ndarray:
    dim %= x.ndim
    starts = range(0, x.shape[dim] - size + 1, step)
    return np.stack([np.moveaxis(np.take(x, range(start, start + size), dim), dim, -1) for start in starts], dim)


def squeezed(x: np.ndarray, dim: int | list[int]) -> np.ndarray:
    dims = [dim] if isinstance(dim, int) else dim
    return x.reshape([size for i, size in enumerate(x.shape) if size != 1 or i not in [d % x.ndim for d in dims]])


def flipped(x: np.ndarray) -> np.ndarray:
    return x.T


def dense(op: Any, x: torch.Tensor, *constants: Any) -> Any:
    """The op on a tensor in row-major order: what it says of others depends on their strides."""
    return op(x.repeat([1] * x.ndim), *constants)


OVERLOADS = (
    of(
        "view.default",
        np.reshape,
        ("M N", ([-1],)),
        ("M 6", ([-1, 2, 3],)),
        ("M N", ([1, -1],)),
        ("", ([1, 1],)),
        call=dense,
    ),
    of("reshape.default", np.reshape, ("M N", ([-1],)), ("M 6", ([-1, 2, 3],)), ("M N 1", ([1, -1],))),
    of("_unsafe_view.default", np.reshape, ("M N", ([-1],)), ("M 6", ([-1, 2, 3],)), call=dense),
    of("permute.default", np.transpose, ("M N K", ([2, 0, 1],)), ("M N", ([-1, 0],)), ("", ([],))),
    of("transpose.int", np.swapaxes, ("M N K", (0, -1)), ("M N", (1, 0))),
    of("t.default", flipped, ("M N", ()), ("N", ())),
    of("unsqueeze.default", np.expand_dims, ("M N", (1,)), ("M", (-1,)), ("", (0,))),
    of("squeeze.default", np.squeeze, ("4 1 3", ()), ("1 1", ()), ("", ())),
    of("squeeze.dim", squeezed, ("M 1 N", (1,)), ("3 N 1", (0,)), ("1 M", (-2,))),
    of("squeeze.dims", squeezed, ("M 1 N 1", ([1, -1],)), ("4 1 M", ([0, 1],))),
    of("expand.default", expanded, ("M 1", ([-1, 3],)), ("N", ([2, -1],)), ("", ([2, 3],)), ("1 N 1", ([4, -1, 1],))),
    of("select.int", lambda x, dim, i: np.take(x, i, dim), ("3 N", (0, 1)), ("M 5", (1, -2)), ("M N 4", (-1, 3))),
    of(
        "slice.Tensor",
        sliced,
        ("7 N", (0, 1, 6, 2)),
        ("M 9", (1, -4)),
        ("M N", ()),
        ("M 5", (-1, 2, 100)),
        ("8", (0, 5, 3)),
    ),
    of(
        "narrow.default",
        lambda x, dim, start, n: sliced(x, dim, start, start + n),
        ("7 N", (0, 2, 3)),
        ("M 5", (-1, 0, 5)),
    ),
    of(
        "diagonal.default",
        lambda x, *at: np.array(np.diagonal(x, *at)),
        ("4 6", ()),
        ("5 3 N", (-1,)),
        ("M 4 6", (2, 1, 2)),
        ("3 3", (3,)),
    ),
    of("unfold.default", windows, ("M 9", (1, 3, 2)), ("7 N", (0, 7, 1)), ("M 8 N", (-2, 2, 3))),
    of(
        "as_strided.default",
        strided,
        ("4 6", ([2, 3], [6, 1])),
        ("4 6", ([3, 3], [1, 4], 2)),
        ("12", ([4, 4], [2, 1])),
        call=dense,
    ),
    of("split.Tensor", cut, ("7 N", (3,)), ("M 6", (2, 1)), ("M 5", (5, -1))),
    of("split_with_sizes.default", cut_at, ("7 N", ([3, 4],)), ("M 6", ([1, 0, 5], 1))),
    of("unbind.int", unbound, ("3 N", ()), ("M 4", (-1,))),
    of("chunk.default", lambda x, n, dim=0: cut(x, -(-x.shape[dim] // n), dim), ("7 N", (3,)), ("M 6", (2, 1))),
    of("alias.default", np.array, ("M N", ()), ("", ())),
    of("detach.default", np.array, ("M N", ()), ("", ())),
    of("clone.default", np.array, ("M N", ()), ("", ())),
    of("contiguous.default", np.array, ("M N", ()), ("", ())),
)
