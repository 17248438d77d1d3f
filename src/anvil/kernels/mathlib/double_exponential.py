"""exp, expm1, exp2, tanh, sinh and cosh in f64."""

from __future__ import annotations

from anvil.kernels.dsl import Val, const, fma, greater, lesser, magnitude, select, with_sign
from anvil.kernels.mathlib.polynomial import horner

# (e^r - 1 - r) / r^2 on |r| <= ln(2)/2; error of e^r 0.001 u
_EXP = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326136, 0.001388888888888375, 0.00019841269874815834,
    2.480158732554432e-05, 2.7557255406285044e-06, 2.7557273647451087e-07, 2.5105214474751413e-08,
    2.0914685161418067e-09,
)  # fmt: skip
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471805592082, 7.371002565167799e-13  # the high part times any exponent is exact
_LN2, _LN2_ERROR = 0.6931471805599453, 2.3190468138462996e-17
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer, held in the low bits
_EXP_MIN, _EXP_MAX = -746.0, 710.0
_TINY = 2.0**-54
_LARGE = 22.0  # from here e^-2x is nothing beside 1


def power_of_two(exponent: Val) -> Val:
    """2^exponent as f64, for exponents (i64) of normal numbers."""
    return ((exponent + 1023) << 52).bits("f64")


def _reduced(x: Val) -> tuple[Val, Val, Val]:
    """(n as i64, r_high, r_low) with x = n ln 2 + r."""
    shifted = fma(x, const(_LOG2_E, x.type), const(_ROUND, x.type))
    n = shifted - _ROUND
    high = fma(n, const(-_LN2_HIGH, x.type), x)
    return shifted.bits("i64") - const(_ROUND, x.type).bits("i64"), high, n * -_LN2_LOW


def exp_sum(x: Val, low: Val) -> Val:
    """e^(x + low) with |low| far below |x|. What rounding 1 + r loses is added back (error 0.6 ulp)."""
    bounded = greater(const(_EXP_MIN, x.type), lesser(const(_EXP_MAX, x.type), x))
    power, high, part = _reduced(bounded)
    rest = part + low
    r = high + rest
    one_plus = high + 1.0
    lost = high - (one_plus - 1.0)
    mantissa = one_plus + (lost + fma(r * r, horner(r, _EXP), rest))
    half = power >> 1
    return mantissa * power_of_two(half) * power_of_two(power - half)


def exp(x: Val) -> Val:
    """e^x = 2^n e^r with r = x - n ln 2."""
    return exp_sum(x, const(0.0, x.type))


def exp2(x: Val) -> Val:
    """2^x = e^(x ln 2), the product in two parts. The whole part of x is taken off first, so that it is exact."""
    bounded = greater(const(-1080.0, x.type), lesser(const(1030.0, x.type), x))
    shifted = bounded + _ROUND
    fraction = bounded - (shifted - _ROUND)
    power = shifted.bits("i64") - const(_ROUND, x.type).bits("i64")
    product = fraction * _LN2
    low = fma(fraction, const(_LN2, x.type), -product) + fraction * _LN2_ERROR
    half = power >> 1
    return exp_sum(product, low) * power_of_two(half) * power_of_two(power - half)


def expm1(x: Val) -> Val:
    """2^n (e^r - 1) + (2^n - 1), so that nothing cancels near 0."""
    bounded = greater(const(-60.0, x.type), lesser(const(_EXP_MAX, x.type), x))
    power, high, low = _reduced(bounded)
    r = high + low
    part = high + fma(r * r, horner(r, _EXP), low)
    scale = power_of_two(power - 1)  # half, so that the largest power exists
    value = fma(scale, part, scale - 0.5) * 2.0
    return select(magnitude(x) < _TINY, x, value)


def tanh(x: Val) -> Val:
    """t / (t + 2) with t = e^2|x| - 1."""
    size = magnitude(x)
    bounded = lesser(const(_LARGE, x.type), size)
    t = expm1(bounded + bounded)
    return with_sign(select(size < _TINY, size, t / (t + 2.0)), x)


def sinh(x: Val) -> Val:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1; for large x e^(x/2) squared, which overflows no sooner."""
    size = magnitude(x)
    t = expm1(lesser(const(_LARGE, x.type), size))
    half = exp(size * 0.5)
    near = (t + t / (t + 1.0)) * 0.5
    value = select(size < _LARGE, near, half * 0.5 * half)
    return with_sign(select(size < _TINY, size, value), x)


def cosh(x: Val) -> Val:
    """(e^x + e^-x) / 2; for large x as :func:`sinh`."""
    size = magnitude(x)
    e = exp(lesser(const(_LARGE, x.type), size))
    half = exp(size * 0.5)
    return select(size < _LARGE, e * 0.5 + 0.5 / e, half * 0.5 * half)


DOUBLE = {"cosh": cosh, "exp": exp, "exp2": exp2, "expm1": expm1, "sinh": sinh, "tanh": tanh}
