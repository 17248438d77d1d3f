"""x to the power y in f64: the logarithm is carried to 2^-65, so that multiplying it by up to 1075 harms nothing."""

from __future__ import annotations

from math import inf, nan

from anvil.kernels.dsl import Val, const, eq, fma, magnitude, ne, select
from anvil.kernels.mathlib.double_exponential import exp_sum
from anvil.kernels.mathlib.double_logarithm import split
from anvil.kernels.mathlib.polynomial import horner
from anvil.kernels.mathlib.rounding import roundeven

# (log(1+f) - 2s - 2s^3/3) / s^5 in powers of s^2 with s = f / (2+f)
_LOG = (
    0.4, 0.28571428571429364, 0.22222222221655907, 0.181818183353876, 0.15384594963074136, 0.13334804663624336,
    0.11706237148816372, 0.11723170160799075,
)  # fmt: skip
_THIRD, _THIRD_ERROR = 0.6666666666666666, 3.700743415417188e-17  # two thirds
_LN2, _LN2_ERROR = 0.6931471805599453, 2.3190468138462996e-17
_BEYOND = 800.0  # |y log x| from here on overflows or vanishes

Pair = tuple[Val, Val]


def _sum(a: Val, b: Val) -> Pair:
    """a + b and what rounding it lost, for |a| >= |b|."""
    total = a + b
    return total, b - (total - a)


def _times(a: Pair, b: Pair) -> Pair:
    high = a[0] * b[0]
    return high, fma(a[0], b[0], -high) + (a[0] * b[1] + a[1] * b[0])


def _log(x: Val) -> Pair:
    """log(x) of positive finite x."""
    k, f = split(x)
    bottom, bottom_lost = _sum(const(2.0, x.type), f)
    s = f / bottom
    s_lost = (fma(-s, bottom, f) - s * bottom_lost) / bottom
    square = _times((s, s_lost), (s, s_lost))
    cube = _times(square, (s, s_lost))
    third = _times(cube, (const(_THIRD, x.type), const(_THIRD_ERROR, x.type)))
    rest = square[0] * cube[0] * horner(square[0], _LOG)
    high, low = _sum(s + s, third[0])
    low = low + (s_lost + s_lost + third[1] + rest)
    power = k * _LN2
    power_lost = fma(k, const(_LN2, x.type), -power) + k * _LN2_ERROR
    joined = power + high
    part = joined - power
    lost = (power - (joined - part)) + (high - part)
    return _sum(joined, lost + (low + power_lost))


def pow(x: Val, y: Val) -> Val:
    """x^y as IEEE has it: 1 for y = 0 and for x = 1, NaN for negative x and y that is not whole."""
    size = magnitude(x)
    one, zero, endless = (const(value, x.type) for value in (1.0, 0.0, inf))
    ordinary = (size > 0.0) & (size < inf)
    log_high, log_low = _log(select(ordinary, size, one))
    finite = magnitude(y) < inf
    t, t_low = _times((log_high, log_low), (select(finite, y, zero), zero))
    t_low = select(magnitude(t) < _BEYOND, t_low, zero)
    value = exp_sum(t, t_low)
    rising = y > 0.0
    value = select(ordinary, value, select(eq(size, 0.0), select(rising, zero, endless), select(rising, endless, zero)))
    grows = select(size > 1.0, select(rising, endless, zero), select(rising, zero, endless))
    value = select(finite, value, select(eq(size, 1.0), one, grows))
    whole, odd = _whole(y)
    negative = x.bits("i64") < 0
    value = select(negative & odd, -value, value)
    value = select((x < 0.0) & ordinary & finite & (whole ^ 1), const(nan, x.type), value)
    value = select(eq(x, x) & eq(y, y), value, const(nan, x.type))
    return select(eq(y, 0.0) | eq(x, 1.0), one, value)


def _whole(y: Val) -> tuple[Val, Val]:
    """Whether y is a whole number, and an odd one: whole, and its half is not. From 2^53 on all are even.

    Without conversion to an integer, which not every vector unit has for f64.
    """
    whole = eq(roundeven(y), y)
    half = y * 0.5
    return whole, whole & ne(roundeven(half), half)


DOUBLE = {"powf": pow}
