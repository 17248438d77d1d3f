"""Division that rounds, remainders, and rounding itself."""

from __future__ import annotations

import torch

from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, compare, const, function, remainder, safe_quotient, select
from anvil.lower.generic.pointwise import Pointwise, promoting

aten = torch.ops.aten


def _different_signs(x: Num, y: Num) -> Num:
    return compare("lt", x, 0) ^ compare("lt", y, 0)


def modulo(x: Num, y: Num) -> Num:
    """The remainder with the sign of the divisor."""
    rest = remainder(x, y)
    if x.dtype in ("ui8", "i1"):
        return rest
    return select(compare("ne", rest, 0) & _different_signs(rest, y), rest + y, rest)


def floor_quotient(x: Num, y: Num) -> Num:
    """x / y rounded down. Floats as PyTorch: from the exact remainder, so that rounding x / y first does no harm."""
    if not x.is_float:
        found = safe_quotient(x, y)
        if x.dtype in ("ui8", "i1"):
            return found
        rest = x - found * y
        return select(compare("ne", rest, 0) & _different_signs(rest, y), found - 1, found)
    rest = remainder(x, y)
    exact = (x - rest) / y
    exact = select(compare("ne", rest, 0) & _different_signs(rest, y), exact - 1.0, exact)
    down = function("floor", exact)
    down = select(compare("gt", exact - down, 0.5), down + 1.0, down)
    zero = function("copysign", x.const(0.0), x / y)
    found = select(compare("ne", exact, 0), down, zero)
    return select(compare("eq", y, 0), x / y, found)


def _div_mode(x: Num, y: Num, rounding_mode: str | None) -> Num:
    if rounding_mode == "floor":
        return floor_quotient(x, y)
    if rounding_mode == "trunc":
        return function("trunc", x / y) if x.is_float else safe_quotient(x, y)
    return x / y


def _promote_div(*_: object, rounding_mode: str | None) -> PROMOTE:
    return PROMOTE.INT_TO_FLOAT if rounding_mode is None else PROMOTE.DEFAULT


def _rounded(name: str):
    """Whole numbers stay as they are."""
    return lambda x: function(name, x) if x.is_float else x


def _round_decimals(x: Num, decimals: int) -> Num:
    """As PyTorch: scaled by a power of ten, rounded, scaled back."""
    if not x.is_float or decimals == 0:
        return function("roundeven", x) if x.is_float else x
    ten = const(10.0 ** abs(decimals), x.dtype)
    if decimals > 0:
        return function("roundeven", x * ten) / ten
    return function("roundeven", x / ten) * ten


def _frac(x: Num) -> Num:
    return x - function("trunc", x)


OPS = {
    **promoting(
        PROMOTE.DEFAULT,
        {
            aten.fmod.Tensor: remainder,
            aten.fmod.Scalar: remainder,
            aten.remainder.Tensor: modulo,
            aten.remainder.Scalar: modulo,
            aten.remainder.Scalar_Tensor: modulo,
            aten.floor_divide.default: floor_quotient,
            aten.floor_divide.Scalar: floor_quotient,
            aten.floor.default: _rounded("floor"),
            aten.ceil.default: _rounded("ceil"),
            aten.trunc.default: _rounded("trunc"),
            aten.round.default: _rounded("roundeven"),
            aten.frac.default: _frac,
        },
    ),
    aten.div.Tensor_mode: Pointwise(_div_mode, _promote_div),
    aten.div.Scalar_mode: Pointwise(_div_mode, _promote_div),
    aten.round.decimals: Pointwise(_round_decimals),
}
