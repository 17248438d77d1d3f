"""Rounding to whole numbers, and the exact remainder, in f32 and f64.

Not every target has instructions for these, and where there are none code generators call a library.
"""

from __future__ import annotations

from math import inf, nan

from anvil.kernels.dsl import Val, cast, const, eq, magnitude, ne, select, shift_right, tree, with_sign
from anvil.kernels.flow import for_
from anvil.kernels.mathlib.double_exponential import power_of_two

_BITS = 11  # that a 53-bit remainder leaves free in a word
_WHOLE = {"f32": 2.0**23, "f64": 2.0**52}  # from here on every number is whole


def roundeven(x: Val) -> Val:
    """To the nearest whole number, ties to even: what adding and subtracting 2^23 (2^52) leaves."""
    large = _WHOLE[str(x.element)]
    size = magnitude(x)
    whole = (size + large) - large
    return with_sign(select(size < large, whole, size), x)


def floor(x: Val) -> Val:
    whole = roundeven(x)
    return with_sign(select(whole > x, whole - 1.0, whole), x)


def ceil(x: Val) -> Val:
    whole = roundeven(x)
    return with_sign(select(whole < x, whole + 1.0, whole), x)


def trunc(x: Val) -> Val:
    size = magnitude(x)
    return with_sign(floor(size), x)


def fmod(x: Val, y: Val) -> Val:
    """x - n y with n = trunc(x / y), exact: a long division of the mantissas, 11 binary digits a step."""
    if str(x.element) == "f32":
        return cast(fmod(cast(x, "f64"), cast(y, "f64")), "f32")
    dividend, high = _parts(magnitude(x))
    divisor, low = _parts(magnitude(y))
    divisor = select(eq(divisor, 0), const(1, divisor.type), divisor)
    left = select(high > low, high - low, const(0, high.type))
    steps = left if left.lanes is None else tree(left, lambda a, b: select(a > b, a, b))
    remainder = dividend % divisor
    with for_(0, (cast(steps, "index") + (_BITS - 1)) // _BITS, carry=[remainder, left]) as turn:
        rest, digits = turn.carry
        now = select(digits < _BITS, digits, const(_BITS, digits.type))
        turn.next([(rest << now) % divisor, digits - now])
    rest = cast(turn.results[0], "f64")
    half = (low - 1075) >> 1
    value = with_sign(rest * power_of_two(half) * power_of_two((low - 1075) - half), x)
    value = select(magnitude(x) < magnitude(y), x, value)
    valid = (magnitude(x) < inf) & ne(y, 0.0) & eq(y, y)
    return select(valid, value, const(nan, x.type))


def _parts(size: Val) -> tuple[Val, Val]:
    """(mantissa, exponent) with size = mantissa 2^(exponent - 1075), for finite size."""
    bits = size.bits("i64")
    exponent = shift_right(bits, 52)
    fraction = bits & ((1 << 52) - 1)
    denormal = eq(exponent, 0)
    return select(denormal, fraction, fraction | (1 << 52)), select(denormal, const(1, bits.type), exponent)


FUNCTIONS = {"ceil": ceil, "floor": floor, "fmod": fmod, "roundeven": roundeven, "trunc": trunc}
DOUBLE = FUNCTIONS
