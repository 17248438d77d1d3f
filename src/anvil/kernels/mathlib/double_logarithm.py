"""log, log1p, log2, log10, and the inverse hyperbolic functions in f64."""

from __future__ import annotations

from math import inf, nan

from anvil.kernels.dsl import Val, cast, const, fma, magnitude, select, sqrt, with_sign
from anvil.kernels.mathlib.polynomial import horner

# (log(1+f) - 2s) / s^3 in powers of s^2 with s = f / (2+f), on sqrt(1/2) <= 1+f <= sqrt(2); error of log 0.001 u
_LOG = (
    0.6666666666666666, 0.4000000000000088, 0.28571428570803253, 0.22222222391794727, 0.18181795631498243,
    0.15386240172447838, 0.13268760562036724, 0.1308675766695207,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.6931471805592082, 7.371002565167799e-13  # the high part times any exponent is exact
_LG2_HIGH, _LG2_LOW = 0.30102999566361177, 3.694239077158931e-13  # log10(2), likewise
_LOG2_E, _LOG2_E_ERROR = 1.4426950408889634, 2.0355273740931033e-17
_LOG10_E, _LOG10_E_ERROR = 0.4342944819032518, 1.098319650216765e-17
_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_SMALLEST_NORMAL = 2.0**-1022
_TINY = 2.0**-54
_LARGE = 2.0**28  # from here x^2 is all of x^2 + 1


def split(x: Val) -> tuple[Val, Val]:
    """(k, f) as f64 with x = 2^k (1+f), 1+f in [sqrt(1/2), sqrt(2)), for positive finite x."""
    denormal = x < _SMALLEST_NORMAL
    bits = select(denormal, x * 2.0**54, x).bits("i64")
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    f = (bits - (exponent << 52)).bits("f64") - 1.0
    return cast(exponent, "f64") + select(denormal, const(-54.0, x.type), const(0.0, x.type)), f


def _tail(f: Val) -> Val:
    """log(1+f) - f, accurate beside f."""
    s = f / (f + 2.0)
    half_square = f * f * 0.5
    square = s * s
    return s * (half_square + square * horner(square, _LOG)) - half_square


def _of_positive(x: Val, value: Val) -> Val:
    """``value`` where x is positive and finite; Inf at Inf, -Inf at ±0, NaN below and at NaN."""
    positive = select(x > 0.0, select(x < inf, value, x), const(nan, x.type))
    return select((x < 0.0) | (x > 0.0), positive, select(x <= 0.0, const(-inf, x.type), x))


def log(x: Val) -> Val:
    """k ln 2 + log(1+f)."""
    k, f = split(x)
    return _of_positive(x, fma(k, const(_LN2_HIGH, x.type), f + fma(k, const(_LN2_LOW, x.type), _tail(f))))


def _scaled(f: Val, factor: float, error: float) -> tuple[Val, Val]:
    """log(1+f) times a constant, in two parts."""
    tail = _tail(f)
    high = f + tail
    low = tail - (high - f)
    product = high * factor
    rest = fma(high, const(factor, f.type), -product)
    return product, rest + fma(high, const(error, f.type), low * factor)


def log2(x: Val) -> Val:
    """k + log(1+f) / ln 2; whole for powers of two."""
    k, f = split(x)
    high, low = _scaled(f, _LOG2_E, _LOG2_E_ERROR)
    return _of_positive(x, k + high + low)


def log10(x: Val) -> Val:
    """k log10(2) + log(1+f) / ln 10."""
    k, f = split(x)
    high, low = _scaled(f, _LOG10_E, _LOG10_E_ERROR)
    return _of_positive(x, fma(k, const(_LG2_HIGH, x.type), high) + fma(k, const(_LG2_LOW, x.type), low))


def log1p(x: Val) -> Val:
    """log(u) of u = 1 + x rounded, and what rounding took off, over u."""
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    value = log(u) + select(u < inf, select(u > 0.0, lost, const(0.0, x.type)), const(0.0, x.type))
    return select(magnitude(x) < _TINY, x, value)


def asinh(x: Val) -> Val:
    """log1p(|x| + x^2 / (1 + sqrt(1 + x^2))); log(2|x|) where x is large."""
    size = magnitude(x)
    square = size * size
    near = log1p(size + square / (sqrt(square + 1.0) + 1.0))
    far = log(size) + _LN2
    return with_sign(select(size < _TINY, size, select(size < _LARGE, near, far)), x)


def acosh(x: Val) -> Val:
    """log1p(t + sqrt(2t + t^2)) with t = x - 1; log(2x) where x is large; NaN below 1."""
    t = x - 1.0
    near = log1p(t + sqrt(t * (t + 2.0)))
    value = select(x < _LARGE, near, log(x) + _LN2)
    return select(x < 1.0, const(nan, x.type), value)


def atanh(x: Val) -> Val:
    """log1p(2|x| / (1 - |x|)) / 2."""
    size = magnitude(x)
    value = log1p((size + size) / (1.0 - size)) * 0.5
    return with_sign(select(size < _TINY, size, select(size > 1.0, const(nan, x.type), value)), x)


DOUBLE = {
    "acosh": acosh, "asinh": asinh, "atanh": atanh, "log": log, "log10": log10, "log1p": log1p, "log2": log2,
}  # fmt: skip
