"""sin, cos and tan in f64, accurate for every finite argument however large."""

from __future__ import annotations

from math import inf, nan, pi

from anvil.kernels.dsl import Val, cast, const, eq, fma, magnitude, ne, select, shift_right
from anvil.kernels.mathlib.polynomial import horner

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in powers of r^2 on |r| <= pi/4; errors below 0.001 u
_SIN = (
    -0.16666666666666666, 0.008333333333333331, -0.00019841269841265063, 2.7557319219337672e-06,
    -2.5052106231927857e-08, 1.6058531536611833e-10, -7.586692262094344e-13,
)  # fmt: skip
_COS = (
    0.041666666666666664, -0.0013888888888888887, 2.4801587301584645e-05, -2.7557319221401993e-07,
    2.087675579079147e-09, -1.1470460841811526e-11, 4.7458692024108734e-14,
)  # fmt: skip
_QUARTER = pi / 4
_HALF_PI, _HALF_PI_ERROR = 1.5707963267948966, 6.123233995736766e-17
# 64 zero bits, then the binary digits of 2/pi
_TWO_OVER_PI = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
_NEEDED = 4  # words that hold 192 bits from any bit of the first on
_LOW = 0xFFFFFFFF


def _reduce(size: Val) -> tuple[Val, Val, Val]:
    """Quadrant (i64) and remainder r as f64 high + low, |r| <= pi/4, of finite ``size`` >= 0 modulo pi/2.

    ``size`` is M 2^E with M of 53 bits. Multiples of four drop out of M 2^E (2/pi), so 192 bits of 2/pi from weight
    2^(1-E) down are enough: the product modulo 2^192 holds the quadrant in its top two bits and the fraction below to
    2^-138, while no f64 lies closer than 2^-62 to a multiple of pi/2 that is not zero.
    """
    bits = size.bits("i64")
    mantissa = (bits & 0xFFFFFFFFFFFFF) | (1 << 52)
    position = (bits >> 52) - 1077 + 64  # of weight 2^(1-E) among the digits; E = exponent - 1075
    limbs = _window(position)
    high, low = _product(mantissa, limbs)
    quadrant = shift_right(high + (1 << 61), 62)
    return _fraction(quadrant, high - (quadrant << 62), low)


def _window(position: Val) -> list[Val]:
    """Six words of 32 bits of 2/pi from bit ``position`` on, the lowest first. Negative positions give some word."""
    words = [const(_signed(word), position.type) for word in _TWO_OVER_PI]
    index = position >> 6
    for step in (16, 8, 4, 2, 1):
        wanted = ne(index & step, 0)
        left = _NEEDED + step - 1
        words = [select(wanted, words[min(i + step, len(words) - 1)], words[i]) for i in range(min(left, len(words)))]
    offset = position & 63
    shifted = [
        (words[i] << offset) | shift_right(shift_right(words[i + 1], 1), 63 - offset) for i in range(_NEEDED - 1)
    ]
    return [half for word in reversed(shifted) for half in (word & _LOW, shift_right(word, 32))]


def _product(mantissa: Val, limbs: list[Val]) -> tuple[Val, Val]:
    """The upper 128 bits of mantissa times the limbs, modulo 2^192, as two words."""
    m0, m1 = mantissa & _LOW, shift_right(mantissa, 32)
    carry = const(0, mantissa.type)
    low_products = [m0 * limb for limb in limbs]
    high_products = [m1 * limb for limb in limbs]
    digits: list[Val] = []
    for i in range(6):
        total = carry + (low_products[i] & _LOW)
        if i >= 1:
            total = total + shift_right(low_products[i - 1], 32) + (high_products[i - 1] & _LOW)
        if i >= 2:
            total = total + shift_right(high_products[i - 2], 32)
        digits.append(total & _LOW)
        carry = shift_right(total, 32)
    return (digits[5] << 32) | digits[4], (digits[3] << 32) | digits[2]


def _fraction(quadrant: Val, high: Val, low: Val) -> tuple[Val, Val, Val]:
    """(quadrant, r_high, r_low): the 128-bit fraction times pi/2. Negative ones are negated first: nothing cancels."""
    negative = high < 0
    opposite = select(eq(low, 0), const(0, low.type) - high, (high ^ -1))
    high = select(negative, opposite, high)
    low = select(negative, const(0, low.type) - low, low)
    top = cast(high, "f64")
    rest = cast(high - cast(top, "i64"), "f64") + cast(shift_right(low, 1), "f64") * 2.0**-63
    scale = 2.0**-62
    product = top * (_HALF_PI * scale)
    error = fma(top, const(_HALF_PI * scale, top.type), -product)
    tail = fma(top, const(_HALF_PI_ERROR * scale, top.type), fma(rest, const(_HALF_PI * scale, top.type), error))
    value = product + tail
    lost = tail - (value - product)
    return quadrant, select(negative, -value, value), select(negative, -lost, lost)


def _reduced(x: Val) -> tuple[Val, Val, Val]:
    size = magnitude(x)
    quadrant, high, low = _reduce(size)
    small = size <= _QUARTER
    zero = const(0.0, x.type)
    return select(small, const(0, quadrant.type), quadrant), select(small, size, high), select(small, zero, low)


def _sin_cos(high: Val, low: Val) -> tuple[Val, Val]:
    square = high * high
    sine = high + fma(square * high, horner(square, _SIN), low)
    half = square * 0.5
    one_less = 1.0 - half
    lost = (1.0 - one_less) - half
    cosine = one_less + (lost + fma(square * square, horner(square, _COS), -(high * low)))
    return sine, cosine


def _sine_at(quadrant: Val, sine: Val, cosine: Val) -> Val:
    """sin(r + quadrant pi/2)."""
    value = select(ne(quadrant & 1, 0), cosine, sine)
    return select(ne(quadrant & 2, 0), -value, value)


def _with_sign_of(value: Val, x: Val) -> Val:
    """``value``, negated where x is negative."""
    return (value.bits("i64") ^ (x.bits("i64") & -(1 << 63))).bits("f64")


def _finite(x: Val, value: Val) -> Val:
    return select(magnitude(x) < inf, value, const(nan, x.type))


def sin(x: Val) -> Val:
    quadrant, high, low = _reduced(x)
    return _finite(x, _with_sign_of(_sine_at(quadrant, *_sin_cos(high, low)), x))


def cos(x: Val) -> Val:
    quadrant, high, low = _reduced(x)
    return _finite(x, _sine_at(quadrant + 1, *_sin_cos(high, low)))


def tan(x: Val) -> Val:
    """sin / cos."""
    quadrant, high, low = _reduced(x)
    sine, cosine = _sin_cos(high, low)
    value = _sine_at(quadrant, sine, cosine) / _sine_at(quadrant + 1, sine, cosine)
    return _finite(x, _with_sign_of(value, x))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


DOUBLE = {"cos": cos, "sin": sin, "tan": tan}
