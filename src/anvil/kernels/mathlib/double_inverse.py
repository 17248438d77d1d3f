"""asin, acos, atan and atan2 in f64."""

from __future__ import annotations

from math import inf, nan, pi

from anvil.kernels.dsl import Val, const, eq, fma, greater, lesser, magnitude, select, sqrt, with_sign
from anvil.kernels.mathlib.polynomial import horner

# (atan(t) - t) / t^3 in powers of t^2 on |t| <= tan(pi/8); error of atan 0.001 u
_ATAN = (
    -0.3333333333333333, 0.19999999999999993, -0.14285714285711518, 0.11111111110754596, -0.09090909067001965,
    0.07692306735718386, -0.06666642013802823, 0.058819251621305094, -0.052580406718134826, 0.0471938939438005,
    -0.041044134902075015, 0.03063517636855608, -0.013917695219310572,
)  # fmt: skip
# (asin(t) - t) / t^3 in powers of t^2 on |t| <= 1/2; error of asin 0.01 u
_ASIN = (
    0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247, 0.02237217294214989,
    0.017352392720869973, 0.013971212973552933, 0.011479177415184906, 0.01032281435018578, 0.005457506718640358,
    0.01740087944269402, -0.014851887071247204, 0.028757851367421566,
)  # fmt: skip
_TAN_EIGHTH = 0.41421356237309503
_PI_ERROR = 1.2246467991473532e-16  # pi - float(pi)


def _atan_of_ratio(small: Val, large: Val) -> Val:
    """atan(small / large) for 0 <= small <= large, large > 0: beyond tan(pi/8) from the angle to pi/4."""
    far = small > large * _TAN_EIGHTH
    top, bottom = select(far, small - large, small), select(far, small + large, large)
    t = top / bottom
    square = t * t
    rest = square * t * horner(square, _ATAN)
    zero = const(0.0, t.type)
    base = select(far, const(pi / 4, t.type), zero)
    return base + (t + (rest + select(far, const(_PI_ERROR / 4, t.type), zero)))


def _from_right_angle(angle: Val) -> Val:
    """pi/2 - angle."""
    return pi / 2 - (angle - _PI_ERROR / 2)


def atan(x: Val) -> Val:
    size = magnitude(x)
    bounded = lesser(const(2.0**60, x.type), size)  # a quotient with more would lose nothing that counts
    one = const(1.0, x.type)
    steep = bounded > 1.0
    angle = _atan_of_ratio(select(steep, one, bounded), select(steep, bounded, one))
    return with_sign(select(steep, _from_right_angle(angle), angle), x)


def atan2(y: Val, x: Val) -> Val:
    """The angle of the point (x, y), in (-pi, pi]; signs of zeros count as in IEEE."""
    high, wide = magnitude(y), magnitude(x)
    steep = high > wide
    small, large = select(steep, wide, high), select(steep, high, wide)
    endless = eq(large, inf)
    one, zero = const(1.0, x.type), const(0.0, x.type)
    scale = select(large > 2.0**1000, const(2.0**-100, x.type), select(large < 2.0**-900, const(2.0**100, x.type), one))
    small = select(endless, select(eq(small, inf), one, zero), small * scale)
    large = select(endless, one, large * scale)
    large = select(eq(large, 0.0), one, large)
    angle = _atan_of_ratio(small, large)
    angle = select(steep, _from_right_angle(angle), angle)
    behind = x.bits("i64") < 0
    angle = select(behind, pi - (angle - _PI_ERROR), angle)
    return with_sign(select(eq(x, x) & eq(y, y), angle, x + y), y)


def _near(t: Val) -> Val:
    """asin(t) - t for |t| <= 1/2."""
    square = t * t
    return square * t * horner(square, _ASIN)


def _half_chord(size: Val) -> Val:
    """sqrt((1 - size) / 2): asin of it is half of acos(size)."""
    return sqrt(greater((1.0 - size) * 0.5, const(0.0, size.type)))


def asin(x: Val) -> Val:
    """Beyond 1/2, pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    size = magnitude(x)
    chord = _half_chord(size)
    far = _from_right_angle((chord + _near(chord)) * 2.0)
    value = select(size <= 0.5, size + _near(size), far)
    return with_sign(select(size <= 1.0, value, const(nan, x.type)), x)


def acos(x: Val) -> Val:
    """pi/2 - asin(x) around 0, twice the asin of half the chord beyond 1/2."""
    size = magnitude(x)
    chord = _half_chord(size)
    half = chord + _near(chord)
    twice = half + half
    far = select(x < 0.0, pi - (twice - _PI_ERROR), twice)
    near = pi / 2 - (x - fma(const(-1.0, x.type), _near(x), const(_PI_ERROR / 2, x.type)))
    value = select(size <= 0.5, near, far)
    return select(size <= 1.0, value, const(nan, x.type))


DOUBLE = {"acos": acos, "asin": asin, "atan": atan, "atan2": atan2}
