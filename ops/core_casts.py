"""Conversions between every two types."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from assay.overloads.fill import mixed
from assay.overloads.spec import NAMES, TYPES, Form, Given, Overload


def fitting(target: torch.dtype, rng, shape, dtype):
    """Values whose whole part ``target`` can hold where both differ in kind: what C++ leaves open is not compared."""
    x = mixed(rng, shape, dtype)
    if target.is_floating_point or target == torch.bool or not dtype.is_floating_point:
        return x
    x = torch.nan_to_num(x.double(), nan=0.0, posinf=1.0, neginf=-1.0)
    limit = 120.0 if torch.iinfo(target).bits < 32 else 3e4
    x = torch.where(x.abs() < limit, x, torch.fmod(x, 100.0))
    return (x.abs() if target == torch.uint8 else x).to(dtype)


def cast(x, dtype):
    """To nearest between floats, 64 to 16 bits through f32 as in PyTorch; towards zero to integers; != 0 to bool."""
    if dtype == torch.bool:
        return x != 0
    if not dtype.is_floating_point:
        whole = np.trunc(x).astype(np.int64) if np.issubdtype(x.dtype, np.floating) else x
        return whole.astype(torch.empty(0, dtype=dtype).numpy().dtype)
    return x.astype(np.float64) if dtype == torch.float64 else x.astype(np.float32)


def to(name: str) -> Form:
    target = TYPES[name]
    return Form(f"to {name}", (Given(fill=partial(fitting, target)),), (), {"dtype": target}, everywhere=True)


def between_devices(op: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return op(x, "cpu", dtype)


def number_of(name: str) -> Form:
    """The type as an argument by position."""
    found = to(name)
    return replace(found, args=(found.kwargs["dtype"],), kwargs={})


SOME = tuple(map(number_of, ("f32", "bf16", "i32", "bool")))
SAME = (Form("matrix", (Given(),)), Form("rank 0", (Given(""),)))

OVERLOADS = (
    Overload("aten.to.dtype", cast, SOME),
    Overload("aten.to.device", cast, SOME, call=between_devices),
    Overload("aten.to.dtype_layout", cast, tuple(map(to, ("f32", "i32")))),
    Overload("prims.convert_element_type.default", cast, SOME),
    Overload(
        "aten.type_as.default",
        lambda x, other: cast(x, torch.from_numpy(other).dtype),
        tuple(
            Form(f"as {name}", (Given(fill=partial(fitting, TYPES[name])), Given("", name))) for name in ("f32", "i32")
        ),
    ),
    Overload("aten.lift_fresh.default", np.array, SAME),
    Overload("aten.lift_fresh_copy.default", np.array, SAME),
    Overload("aten._to_copy.default", cast, tuple(to(name) for name in NAMES.values())),
)
