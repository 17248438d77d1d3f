"""sin and cos, accurate for every finite f32 however large (rotary angles reach the context length and beyond)."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan, pi

from anvil.kernels.dsl import Val, cast, const, eq, fma, magnitude, ne, select, shift_right
from anvil.kernels.mathlib.polynomial import horner

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in powers of r^2 on |r| <= pi/4; errors below 0.003 u
_SIN = (-0.16666667, 0.008333379, -0.00019853064, 2.83251e-06)
_COS = (0.041666646, -0.001388731, 2.4432327e-05)
_QUARTER = 0.78539816
# 26 zero bits, then the binary digits of 2/pi: words of 32 bits
_TWO_OVER_PI = (0x28, 0xBE60DB93, 0x91054A7F, 0x09D5F47D, 0x4D377036, 0xD8A5664F, 0x10E4107F, 0x9458EAF7)
_BIAS = 126  # biased exponent of 0.5, where the digits of 2/pi begin to matter to the quadrant
_WORDS = 5  # first words that f32's exponents can ask for


def _reduce(size: Val) -> tuple[Val, Val]:
    """Quadrant (0..3, i64) and remainder r (f32, |r| <= pi/4) of ``size`` >= 0 modulo pi/2.

    ``size`` is M 2^E with M of 24 bits. Multiples of four drop out of M 2^E (2/pi), so 96 bits of 2/pi from weight 2^1
    down are enough: the product modulo 2^96 holds the quadrant in its top two bits and the fraction below, to 2^-70,
    while no f32 lies closer than 2^-33 to a multiple of pi/2 that is not zero.
    """
    bits = size.bits("i32")
    mantissa = cast((bits & 0x7FFFFF) | 0x800000, "i64")
    position = (bits >> 23) - _BIAS
    offset = cast(position & 31, "i64")
    words = _words(position >> 5)
    high, middle, low = (shift_right(((a << 32) | b) << offset, 32) for a, b in pairwise(words))
    product = ((mantissa * high) << 32) + mantissa * middle + shift_right(mantissa * low, 32)
    quadrant = shift_right(product + (1 << 61), 62)
    fraction = product - (quadrant << 62)
    remainder = cast(cast(fraction, "f64") * (pi / 2 * 2.0**-62), "f32")
    small = size <= _QUARTER
    return select(small, const(0, quadrant.type), quadrant), select(small, size, remainder)


def _words(first: Val) -> list[Val]:
    """Four consecutive words of 2/pi from word ``first`` (i32; out of range gives some word), as i64."""
    chosen = []
    for step in range(4):
        word = const(_TWO_OVER_PI[step], "i64", like=first)
        for start in range(1, _WORDS):
            word = select(eq(first, start), const(_TWO_OVER_PI[start + step], "i64", like=first), word)
        chosen.append(word)
    return chosen


def _sin_cos(r: Val) -> tuple[Val, Val]:
    square = r * r
    sine = fma(square * r, horner(square, _SIN), r)
    cosine = fma(square * square, horner(square, _COS), fma(square, const(-0.5, r.type), const(1.0, r.type)))
    return sine, cosine


def _select_quadrant(quadrant: Val, sine: Val, cosine: Val) -> Val:
    """sin(r + quadrant pi/2)."""
    value = select(ne(quadrant & 1, 0), cosine, sine)
    return select(ne(quadrant & 2, 0), -value, value)


def sin(x: Val) -> Val:
    size = magnitude(x)
    quadrant, r = _reduce(size)
    sign = x.bits("i32") & -(1 << 31)
    value = (_select_quadrant(quadrant, *_sin_cos(r)).bits("i32") ^ sign).bits("f32")
    return select(size < inf, value, const(nan, x.type))


def cos(x: Val) -> Val:
    size = magnitude(x)
    quadrant, r = _reduce(size)
    return select(size < inf, _select_quadrant(quadrant + 1, *_sin_cos(r)), const(nan, x.type))


FUNCTIONS = {"cos": cos, "sin": sin}
