"""log."""

from __future__ import annotations

from math import inf, nan

from anvil.kernels.dsl import Val, cast, const, fma, select
from anvil.kernels.mathlib.polynomial import horner

# (log(1+f) - f + f^2/2) / f^3 on sqrt(1/2) <= 1+f <= sqrt(2); error of log 0.1 u
_LOG = (0.3333333, -0.2500082, 0.20001242, -0.1662341, 0.14201586, -0.13159598, 0.12762141, -0.07636359)
_LN2_HIGH, _LN2_LOW = 0.693147182, -1.90465421e-9
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 2.0**-126


def log(x: Val) -> Val:
    """log(2^k (1+f)) = k ln 2 + log(1+f) with 1+f in [sqrt(1/2), sqrt(2)). -Inf at ±0, NaN below."""
    denormal = x < _SMALLEST_NORMAL
    bits = select(denormal, x * 2.0**23, x).bits("i32")
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).bits("f32") - 1.0
    k = cast(exponent, "f32") + select(denormal, const(-23.0, x.type), const(0.0, x.type))
    square = f * f
    tail = fma(square * f, horner(f, _LOG), square * -0.5)
    value = fma(k, const(_LN2_HIGH, x.type), fma(k, const(_LN2_LOW, x.type), tail) + f)
    finite = select(x < inf, value, x)
    positive = select(x > 0.0, finite, const(nan, x.type))
    return select((x < 0.0) | (x > 0.0), positive, select(x <= 0.0, const(-inf, x.type), x))


FUNCTIONS = {"log": log}
