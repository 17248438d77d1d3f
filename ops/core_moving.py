"""Elements moved: turned, rolled, repeated, padded, joined, written into a part. Exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from assay.overloads.spec import Form, Given, Overload


def of(name: str, golden: Callable[..., Any], *forms: tuple[str, tuple[Any, ...]], **options: Any) -> Overload:
    """Tensors of the axes before each ``|``, then constants."""
    found = tuple(Form(f"{axes} {args}", tuple(map(Given, axes.split("|"))), args) for axes, args in forms)
    return Overload(f"aten.{name}", golden, found, signed_zero=True, **options)


def rolled(x: np.ndarray, shifts: list[int], dims: list[int] | None = None) -> np.ndarray:
    return np.roll(x, shifts, tuple(dims)) if dims else np.roll(x, sum(shifts))


def tiled(x: np.ndarray, times: list[int]) -> np.ndarray:
    return np.tile(x, times)


def padded(x: np.ndarray, pad: Sequence[int], value: float = 0) -> np.ndarray:
    """A negative number cuts off."""
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(a, b) for a, b in zip(pad[-2::-2], pad[::-2], strict=True)]
    kept = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape, strict=True))]
    return np.pad(kept, [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=x.dtype.type(value))


def mirrored(mode: str) -> Callable[..., np.ndarray]:
    def golden(x: np.ndarray, pad: Sequence[int]) -> np.ndarray:
        widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [
            (a, b) for a, b in zip(pad[-2::-2], pad[1::2][::-1], strict=True)
        ]
        return np.pad(x, widths, mode=mode)  # type: ignore[call-overload]

    return golden


def padded_as(x: np.ndarray, pad: Sequence[int], mode: str = "constant", value: float = 0) -> np.ndarray:
    names = {"reflect": "reflect", "replicate": "edge"}
    return padded(x, pad, value) if mode == "constant" else mirrored(names[mode])(x, pad)


def written(x: np.ndarray, part: np.ndarray, dim: int = 0, start=None, end=None, step: int = 1) -> np.ndarray:
    result = np.array(x)
    np.moveaxis(result, dim, 0)[start:end:step] = np.moveaxis(part, dim, 0)
    return result


def written_at(x: np.ndarray, part: np.ndarray, dim: int, index: int) -> np.ndarray:
    result = np.array(x)
    np.moveaxis(result, dim, 0)[index] = part
    return result


def written_diagonal(x: np.ndarray, part: np.ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1) -> np.ndarray:
    result = np.array(x)
    rows = np.arange(part.shape[-1]) + max(-offset, 0)
    np.moveaxis(result, (dim1, dim2), (0, 1))[rows, rows + offset] = np.moveaxis(part, -1, 0)
    return result


def listed(op: Any, *arguments: Any) -> Any:
    """Two tensors as a list."""
    return op(list(arguments[:2]), *arguments[2:])


def zero_or_one(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(rng.integers(0, 2, shape)).to(dtype)


OVERLOADS = (
    of(
        "flip.default",
        lambda x, dims: np.array(np.flip(x, dims)),
        ("M N", ([0],)),
        ("M N", ([1, 0],)),
        ("M 3 N", ([-1],)),
    ),
    of(
        "roll.default",
        rolled,
        ("M N", ([1], [0])),
        ("M N", ([3],)),
        ("M N", ([-2, 5], [0, -1])),
        ("M 3 N", ([1, 2], [1, 1])),
    ),
    of("repeat.default", tiled, ("M N", ([2, 1],)), ("M N", ([2, 1, 3],)), ("N", ([0],))),
    of("repeat_interleave.self_int", np.repeat, ("M N", (3, 0)), ("M N", (2, -1)), ("M N", (2,))),
    of("constant_pad_nd.default", padded, ("M N", ([2, 1],)), ("M N", ([1, 0, 0, 3], 1)), ("4 6", ([-1, 2, 3, -2], 2))),
    of(
        "pad.default",
        padded_as,
        ("M N", ([2, 1],)),
        ("M N", ([1, 0, 0, 3], "constant", 1)),
        ("2 3 7", ([2, 3], "reflect")),
        ("M 3 7", ([2, 9], "replicate")),
        without={"bool": "PyTorch pads with the number 0"},
    ),
    of(
        "reflection_pad1d.default",
        mirrored("reflect"),
        ("2 3 7", ([2, 3],)),
        ("M 4", ([0, 1],)),
        without={"bool": "numpy"},
    ),
    of("reflection_pad2d.default", mirrored("reflect"), ("N 2 4 5", ([2, 3, 1, 0],))),
    of("reflection_pad3d.default", mirrored("reflect"), ("N 2 3 4 5", ([2, 3, 1, 0, 2, 1],))),
    of("replication_pad1d.default", mirrored("edge"), ("2 3 7", ([2, 9],)), ("M 4", ([0, 1],))),
    of("replication_pad2d.default", mirrored("edge"), ("N 2 4 5", ([2, 3, 1, 0],))),
    of("replication_pad3d.default", mirrored("edge"), ("N 2 3 4 5", ([2, 3, 1, 0, 2, 1],))),
    of("tril.default", np.tril, ("M N", ()), ("M N", (2,)), ("3 M N", (-1,))),
    of("triu.default", np.triu, ("M N", ()), ("M N", (-2,)), ("3 M N", (1,))),
    of(
        "cat.default", lambda x, y, dim=0: np.concatenate([x, y], dim), ("M N|K N", ()), ("M N|M K", (-1,)), call=listed
    ),
    of("stack.default", lambda x, y, dim=0: np.stack([x, y], dim), ("M N|M N", ()), ("M N|M N", (-1,)), call=listed),
    of("slice_scatter.default", written, ("7 N|3 N", (0, 1, 6, 2)), ("M 9|M 4", (1, -4)), ("M N|M N", ())),
    of("select_scatter.default", written_at, ("3 N|N", (0, 1)), ("M 5|M", (1, -2))),
    of("diagonal_scatter.default", written_diagonal, ("4 6|4", ()), ("5 3 N|N 3", (-2,)), ("4 6|2", (4,))),
    of("copy.default", lambda x, y: np.array(np.broadcast_to(y, x.shape)), ("M N|M N", ()), ("M N|N", ())),
    of("fill.Scalar", lambda x, value: np.full_like(x, value), ("M N", (1,)), ("", (1,))),
    Overload("aten.fill.Tensor", np.full_like, (Form("a number", (Given(), Given("", fill=zero_or_one))),)),
)
