"""Bytes as numbers: vectors of packed integers and of 16-bit floats, read in registers. All conversions are exact."""

from __future__ import annotations

from anvil.kernels.dsl import Val, cast, const, eq, select, shuffle
from anvil.kernels.dsl import shift_right as logical_right
from anvil.mlir import arith, ir, vector
from anvil.targets.base import Target

_UPPER = 0xF0F0F0F0 - (1 << 32)  # nibbles of every byte, as a signed number


def reinterpret(value: Val, element: str) -> Val:
    """A vector's bits read as elements of another width: 16 x i8 is 4 x i32, the lowest byte first."""
    kind = ir.Type.parse(element)
    bits = (value.lanes or 1) * ir.IntegerType(value.element).width
    width = ir.IntegerType(kind).width if isinstance(kind, ir.IntegerType) else ir.FloatType(kind).width
    return Val(vector.bitcast(ir.VectorType.get([bits // width], kind), value.ssa))


def widen(value: Val, element: str) -> Val:
    """Integers zero-extended to ``element`` (``dsl.cast`` extends the sign)."""
    kind = ir.VectorType.get([value.lanes], ir.Type.parse(element)) if value.lanes else ir.Type.parse(element)
    return Val(arith.extui(kind, value.ssa))


def unsigned_bits(word: Val, first: int, count: int) -> Val:
    """Bits ``first`` to ``first + count`` of i32 lanes as a number 0 .. 2^count - 1."""
    moved = logical_right(word, first) if first else word
    return moved if first + count == 32 else moved & ((1 << count) - 1)


def bits_in_place(word: Val, first: int, count: int) -> tuple[Val, int]:
    """Bits ``first`` to ``first + count`` of i32 lanes as a number times 2^shift, and that shift: one operation."""
    if first + count == 32:  # in place they would be a sign
        return unsigned_bits(word, first, count), 0
    return word & (((1 << count) - 1) << first), first


def signed_bits(word: Val, first: int, count: int) -> Val:
    """Bits ``first`` to ``first + count`` of i32 lanes as a two's complement number."""
    top = 32 - first - count
    return (word << top if top else word) >> (32 - count)


def top_bits(word: Val, first: int, count: int) -> Val:
    """``signed_bits`` times 2^(32 - count): one cheap operation less."""
    top = 32 - first - count
    return (word << top if top else word) & -(1 << (32 - count))


def byte_on_top(word: Val, byte: int, target: Target) -> Val:
    """``top_bits(word, 8 byte, 8)``, in one operation where the target moves bytes freely."""
    if target.machine != "x86_64":
        return top_bits(word, 8 * byte, 8)
    source = reinterpret(word, "i8")
    zero = source.lanes or 0  # the first element of the other operand
    order = [place for lane in range(0, zero, 4) for place in (zero, zero, zero, lane + byte)]
    return reinterpret(shuffle(source, const(0, source.type), order), "i32")


def upper_nibbles(word: Val) -> tuple[Val, Val]:
    """The even nibbles of i32 lanes and the odd ones, each in the upper half of a byte."""
    return (word << 4) & _UPPER, word & _UPPER


def from_bf16(bits: Val) -> Val:
    """f32 of bf16 bits (i16 lanes): the upper half of a word."""
    return (cast(bits, "i32") << 16).bits("f32")


def from_f16(bits: Val, target: Target) -> Val:
    """f32 of f16 bits (i16 lanes), with an instruction where the target has one."""
    if has_half_vectors(target):
        return cast(bits.bits("f16"), "f32")
    word = widen(bits, "i32")
    magnitude = (word & 0x7FFF) << 13
    # An f32 exponent is 112 more than that of the same number in f16. The product also normalises what was denormal.
    finite = (magnitude.bits("f32") * 2.0**112).bits("i32")
    special = magnitude | 0x7F800000
    number = select(eq(word & 0x7C00, const(0x7C00, word.type)), special, finite)
    return (number | ((word & 0x8000) << 16)).bits("f32")


def has_half_vectors(target: Target) -> bool:
    """Whether vectors of f16 can be converted to f32 by the target's own instructions."""
    return target.machine != "riscv64" or "+zvfh" in target.features
