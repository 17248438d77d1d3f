"""Comparisons, logical and bitwise operations, and choices between two values."""

from __future__ import annotations

from math import inf

import torch

from anvil.errors import UnsupportedError
from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, compare, const, function, largest_of, magnitude, select, shift
from anvil.lower.generic.pointwise import Pointwise, promoting

aten = torch.ops.aten


def _comparison(predicate: str):
    return lambda x, y: compare(predicate, x, y)


def _true(x: Num) -> Num:
    return x.to("i1")


def _not(x: Num) -> Num:
    """Bitwise; for a bool the other one."""
    return x ^ (1 if x.dtype == "i1" else -1)


def _and(x: Num, y: Num) -> Num:
    return x & y


def _or(x: Num, y: Num) -> Num:
    return x | y


def _xor(x: Num, y: Num) -> Num:
    return x ^ y


def _integer(x: Num, names: str) -> Num:
    """``x``. PyTorch's shape functions let floats pass, its kernels do not."""
    if x.is_float:
        raise UnsupportedError(f"{names}: x is {x.dtype}, expected an integer type, as in PyTorch; convert it first")
    return x


def _left(x: Num, count: Num) -> Num:
    return shift(_integer(x, "bitwise_left_shift, lshift"), count, left=True)


def _right(x: Num, count: Num) -> Num:
    return shift(_integer(x, "bitwise_right_shift, rshift"), count, left=False)


def _is_infinite(x: Num) -> Num:
    return compare("eq", magnitude(x), inf) if x.is_float else x.const(0).to("i1")


def _is_finite(x: Num) -> Num:
    return compare("lt", magnitude(x), inf) if x.is_float else const(1, "i1")


def _sign_bit(x: Num) -> Num:
    """Also of zeros and NaN."""
    return compare("lt", function("copysign", x.const(1.0), x) if x.is_float else x, 0)


def _nan_to_num(x: Num, nan: float | None, posinf: float | None, neginf: float | None) -> Num:
    """NaN to 0 and infinities to the largest numbers, or to what is given."""
    if not x.is_float:
        return x
    largest = largest_of(x.dtype)
    above = x.const(largest if posinf is None else posinf)
    below = x.const(-largest if neginf is None else neginf)
    value = select(compare("eq", x, inf), above, select(compare("eq", x, -inf), below, x))
    return select(compare("ne", x, x), x.const(nan or 0.0), value)


def _is_nan(x: Num) -> Num:
    return compare("ne", x, x) if x.is_float else x.const(0).to("i1")


OPS = {
    **promoting(
        PROMOTE.ALWAYS_BOOL,
        {
            getattr(getattr(aten, name), overload): _comparison(name)
            for name in ("lt", "le", "gt", "ge", "eq", "ne")
            for overload in ("Tensor", "Scalar")
        },
        cheap=True,
    ),
    **promoting(
        PROMOTE.ALWAYS_BOOL,
        {
            aten.logical_and.default: lambda x, y: _true(x) & _true(y),
            aten.logical_or.default: lambda x, y: _true(x) | _true(y),
            aten.logical_xor.default: lambda x, y: _true(x) ^ _true(y),
            aten.logical_not.default: lambda x: _true(x) ^ 1,
            aten.isnan.default: _is_nan,
            aten.isinf.default: _is_infinite,
            aten.isfinite.default: _is_finite,
            aten.isposinf.default: lambda x: compare("eq", x, inf) if x.is_float else x.const(0).to("i1"),
            aten.isneginf.default: lambda x: compare("eq", x, -inf) if x.is_float else x.const(0).to("i1"),
            aten.signbit.default: _sign_bit,
        },
        cheap=True,
    ),
    **promoting(
        PROMOTE.DEFAULT,
        {
            **{
                getattr(getattr(aten, f"bitwise_{name}"), overload): body
                for name, body in (("and", _and), ("or", _or), ("xor", _xor))
                for overload in ("Tensor", "Scalar", "Scalar_Tensor")
            },
            aten.bitwise_not.default: _not,
            **{
                getattr(getattr(aten, f"__{name}__"), overload): body
                for name, body in (("and", _and), ("or", _or), ("xor", _xor), ("lshift", _left), ("rshift", _right))
                for overload in ("Tensor", "Scalar")
            },
            **{
                getattr(getattr(aten, f"bitwise_{name}"), overload): body
                for name, body in (("left_shift", _left), ("right_shift", _right))
                for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
            },
        },
        cheap=True,
    ),
    **{
        getattr(aten.where, overload): Pointwise(
            lambda condition, x, y: select(_true(condition), x, y), raw=("condition",), cheap=True
        )
        for overload in ("self", "ScalarSelf", "ScalarOther", "Scalar")
    },
    aten.nan_to_num.default: Pointwise(_nan_to_num, raw=("nan", "posinf", "neginf"), cheap=True),
    aten.masked_fill.Scalar: Pointwise(lambda x, mask, value: select(mask, value, x), raw=("mask",), cheap=True),
    aten.masked_fill.Tensor: Pointwise(lambda x, mask, value: select(mask, value, x), raw=("mask",), cheap=True),
}
