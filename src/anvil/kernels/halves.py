"""Conversions between f32 and the 16-bit floats in integer arithmetic: the same bits on every target.

bf16 always goes this way: few targets convert it, and code generators fold pairs of its roundings away. f16 goes this
way where the target has no instruction for it. Rounding is to nearest even; a NaN stays a (quiet) NaN.
"""

from __future__ import annotations

from anvil.kernels.dsl import Val, cast, const, lesser, magnitude, ne, select, shift_right

_F32_INFINITY = 0x7F800000
_F16_INFINITY = 0x7C00
_F16_OVERFLOW = 0x47800000  # f32 bits of 65536: what rounds to this or more is infinite in f16
_F16_SMALLEST_NORMAL = 0x38800000  # f32 bits of 2^-14
_REBIAS = 0x38000000  # difference of the exponent biases, 112, in its place in an f32


def widen_bf16(x: Val) -> Val:
    """bf16 to f32, exact: a bf16 is the upper half of an f32."""
    return (_as_i32(x) << 16).bits("f32")


def narrow_bf16(x: Val) -> Val:
    """f32 to bf16."""
    bits = x.bits("i32")
    rounded = shift_right(bits + 0x7FFF + (shift_right(bits, 16) & 1), 16)
    quiet = shift_right(bits, 16) | 0x40
    return _as_half(select(ne(x, x), quiet, rounded), "bf16")


def widen_f16(x: Val) -> Val:
    """f16 to f32, exact: exponent and fraction move to their place, and a multiplication mends the bias, which also
    turns numbers below the normal range of f16 into normal ones."""
    bits = _as_i32(x)
    size = (bits & 0x7FFF) << 13
    finite = (size.bits("f32") * 2.0**112).bits("i32")
    special = (bits & _F16_INFINITY) > (_F16_INFINITY - 1)
    return (select(special, size | _F32_INFINITY, finite) | ((bits & 0x8000) << 16)).bits("f32")


def narrow_f16(x: Val) -> Val:
    """f32 to f16. Below 2^-14, adding 0.5 rounds at 2^-24, the step of f16 there, and leaves the fraction in place."""
    size = magnitude(x)
    bits = size.bits("i32")
    rounded = bits + 0xFFF + (shift_right(bits, 13) & 1)
    normal = shift_right(rounded - _REBIAS, 13)
    small = (size + 0.5).bits("i32") - const(0.5, x.type).bits("i32")
    finite = select(bits < _F16_SMALLEST_NORMAL, small, normal)
    value = select(rounded < _F16_OVERFLOW, finite, const(_F16_INFINITY, bits.type))
    quiet = lesser(shift_right(bits, 13) & 0x3FF, const(0x1FF, bits.type)) | (_F16_INFINITY | 0x200)
    sign = shift_right(x.bits("i32"), 16) & 0x8000
    return _as_half(select(ne(x, x), quiet, value) | sign, "f16")


def _as_i32(half: Val) -> Val:
    """The bits of a 16-bit float, zero-extended."""
    return cast(half.bits("i16"), "i32") & 0xFFFF


def _as_half(bits: Val, dtype: str) -> Val:
    return cast(bits, "i16").bits(dtype)
