"""Comparisons, logic, bits, choices, and questions about single numbers: exact in every type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from assay.overloads.fill import between
from assay.overloads.forms import one, two, with_number
from assay.overloads.spec import Form, Given, Overload

COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
LOGICAL = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
MASK = Given(dtype="bool")


def is_float(x) -> bool:
    return np.issubdtype(x.dtype, np.floating)


def bitwise_not(x):
    return ~x


def moved(x, count, left):
    """Bits moved; from the width on, and by a negative count, only the sign is left."""
    width = x.dtype.itemsize * 8
    count = np.asarray(count, np.int64)
    inside = (count >= 0) & (count < width)
    safe = np.where(inside, count, 0).astype(x.dtype)
    if left:
        return np.where(inside, np.left_shift(x, safe), np.zeros_like(x))
    return np.where(inside, np.right_shift(x, safe), np.where(x < 0, -1, 0).astype(x.dtype))


def left(x, count):
    return moved(x, count, True)


def right(x, count):
    return moved(x, count, False)


def nan_to_num(x, nan=None, posinf=None, neginf=None):
    """For f32: its largest numbers stand for infinities."""
    return np.nan_to_num(x, nan=nan or 0.0, posinf=posinf, neginf=neginf) if is_float(x) else x


def number_first(op: Any, x: Any, number: int) -> Any:
    return op(number, x)


def swapped(golden: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, number: golden(np.full(x.shape, number).astype(x.dtype), x)


SHIFTS = two(second=between(-2, 70))
SMALL_SHIFTS = tuple(Form(f"by {n}", (Given(),), (n,)) for n in (3, 0, 40))
NO_BOOL = {"bool": "PyTorch computes it and its own shape function refuses it"}
GIVEN = {"nan": 1.0, "posinf": 2.0, "neginf": -3.0}

OVERLOADS = (
    *(Overload(f"aten.{name}.Tensor", golden, two(), promote="common") for name, golden in COMPARISONS.items()),
    *(
        Overload(f"aten.{name}.Scalar", golden, with_number(1, 0.5), promote="common", numbers=True)
        for name, golden in COMPARISONS.items()
    ),
    *(Overload(f"aten.logical_{name}.default", golden, two()) for name, golden in LOGICAL.items()),
    Overload("aten.logical_not.default", np.logical_not, one()),
    *(Overload(f"aten.bitwise_{name}.Tensor", golden, two(), promote="common") for name, golden in BITWISE.items()),
    *(
        Overload(f"aten.bitwise_{name}.Scalar", golden, with_number(5, 1), promote="common", numbers=True)
        for name, golden in BITWISE.items()
    ),
    *(Overload(f"aten.__{name}__.Tensor", golden, two(), promote="common") for name, golden in BITWISE.items()),
    *(
        Overload(f"aten.__{name}__.Scalar", golden, with_number(5, 1), promote="common", numbers=True)
        for name, golden in BITWISE.items()
    ),
    *(
        Overload(
            f"aten.bitwise_{name}.Scalar_Tensor",
            swapped(golden),
            with_number(5, 1),
            call=number_first,
            promote="common",
            numbers=True,
        )
        for name, golden in BITWISE.items()
    ),
    *(
        Overload(
            f"aten.bitwise_{name}_shift.Scalar_Tensor",
            swapped(golden),
            tuple(Form(f"of {n}", (Given(fill=between(0, 9)),), (n,)) for n in (5, 1)),
            call=number_first,
            promote="common",
            numbers=True,
        )
        for name, golden in (("left", left), ("right", right))
    ),
    Overload("aten.__lshift__.Tensor", left, SHIFTS, without=NO_BOOL),
    Overload("aten.__rshift__.Tensor", right, SHIFTS, without=NO_BOOL),
    Overload("aten.bitwise_not.default", bitwise_not, one()),
    Overload("aten.bitwise_left_shift.Tensor", left, SHIFTS),
    Overload("aten.bitwise_right_shift.Tensor", right, SHIFTS),
    Overload("aten.bitwise_left_shift.Tensor_Scalar", left, SMALL_SHIFTS, promote="common", numbers=True),
    Overload("aten.bitwise_right_shift.Tensor_Scalar", right, SMALL_SHIFTS, promote="common", numbers=True),
    Overload("aten.__lshift__.Scalar", left, SMALL_SHIFTS, promote="common", numbers=True, without=NO_BOOL),
    Overload("aten.__rshift__.Scalar", right, SMALL_SHIFTS, promote="common", numbers=True, without=NO_BOOL),
    Overload("aten.isnan.default", lambda x: np.isnan(x), one()),
    Overload("aten.isinf.default", lambda x: np.isinf(x), one()),
    Overload("aten.isfinite.default", lambda x: np.isfinite(x), one(), call=lambda op, x: op(x)),
    Overload("aten.signbit.default", lambda x: np.signbit(x) if is_float(x) else x < 0, one()),
    Overload("aten.isposinf.default", lambda x: x == np.inf, one()),
    Overload("aten.isneginf.default", lambda x: x == -np.inf, one()),
    Overload("aten.nan_to_num.default", nan_to_num, (Form("given", (Given(),), (), GIVEN),)),
    Overload(
        "aten.where.self",
        np.where,
        (
            Form("equal", (MASK, Given(), Given())),
            Form("broadcast", (Given("M 1", "bool"), Given("N"), Given("M N"))),
            Form("rank 0", (Given("", "bool"), Given("M N"), Given(""))),
        ),
    ),
    Overload(
        "aten.where.ScalarSelf",
        lambda c, y, x: np.where(c, np.asarray(x, y.dtype), y),
        (Form("number", (MASK, Given()), (1,)),),
        call=lambda op, c, y, x: op(c, x, y),
    ),
    Overload(
        "aten.where.Scalar",
        lambda c: np.where(c, np.float32(2.5), np.float32(-1)),
        (Form("numbers", (MASK,), types=("bool",)),),
        call=lambda op, c: op(c, 2.5, -1.0),
    ),
    Overload(
        "aten.isin.Tensor_Tensor",
        np.isin,
        (Form("five", (Given(fill=between(0, 4)), Given("5", fill=between(0, 4)))),),
    ),
    Overload(
        "aten.where.ScalarOther",
        lambda c, x, y: np.where(c, x, np.asarray(y, x.dtype)),
        (Form("number", (MASK, Given()), (1,)),),
    ),
)
