"""Comparisons, logical and bitwise operations, and choices between two values."""

from __future__ import annotations

import torch

from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, compare, select
from anvil.lower.generic.pointwise import Pointwise, promoting

aten = torch.ops.aten


def _comparison(predicate: str):
    return lambda x, y: compare(predicate, x, y)


def _true(x: Num) -> Num:
    return x.to("i1")


def _not(x: Num) -> Num:
    """Bitwise; for a bool the other one."""
    return x ^ (1 if x.dtype == "i1" else -1)


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
        },
        cheap=True,
    ),
    **promoting(
        PROMOTE.DEFAULT,
        {
            aten.bitwise_and.Tensor: lambda x, y: x & y,
            aten.bitwise_or.Tensor: lambda x, y: x | y,
            aten.bitwise_xor.Tensor: lambda x, y: x ^ y,
            aten.bitwise_not.default: _not,
            aten.__and__.Tensor: lambda x, y: x & y,
            aten.__or__.Tensor: lambda x, y: x | y,
            aten.__xor__.Tensor: lambda x, y: x ^ y,
        },
        cheap=True,
    ),
    **{
        getattr(aten.where, overload): Pointwise(
            lambda condition, x, y: select(_true(condition), x, y), raw=("condition",), cheap=True
        )
        for overload in ("self", "ScalarSelf", "ScalarOther", "Scalar")
    },
    aten.masked_fill.Scalar: Pointwise(lambda x, mask, value: select(mask, value, x), raw=("mask",), cheap=True),
    aten.masked_fill.Tensor: Pointwise(lambda x, mask, value: select(mask, value, x), raw=("mask",), cheap=True),
}
