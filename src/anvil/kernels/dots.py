"""The instructions that multiply several 8-bit integers and add them up at once, one :class:`Dot` for each.

All of them give the exact sum in 32 bits: which one a target has decides how codes lie in memory and how fast a kernel
is, never a bit of the result. Codes are -127 .. 127 on both sides; -128 would break ``vpmaddubsw``, see there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anvil.kernels.bits import reinterpret
from anvil.kernels.dsl import Val, cast, const, select, shuffle, splat
from anvil.mlir import arith, ir, llvm, vector
from anvil.targets.base import Target


@dataclass(frozen=True)
class Dot:
    """One way to add products of codes to i32 sums.

    Args:
        name: the instruction that does the work, as a disassembler spells it; what instruction contracts ask for.
        inputs: inputs of one step.
        word: bits of the codes of an output that lie side by side; 8 is one row of outputs per input.
        add: (sums, weights, x) -> sums. ``weights`` are the bytes of the step's rows of one vector of outputs, ``x``
            what ``spread`` made. Sums are i32 [rows x lanes].
        spread: (codes of ``rows`` rows of x, i8 [inputs] each; lanes) -> x.
        offset: what is added to the codes of x before they are stored, for instructions that take unsigned ones.
        rows: rows of x that one vector of sums is for.
        spare: registers that ``add`` needs beside sums and weights.
    """

    name: str
    inputs: int
    word: int
    add: Callable[[Val, Sequence[Val], Val | Sequence[Val]], Val]
    spread: Callable[[Sequence[Val], int], Val | Sequence[Val]]
    offset: int = 0
    rows: int = 1
    spare: int = 2

    def tile_rows(self, target: Target) -> int:
        """Rows of sums that fit ``target``'s registers beside the weights of one step."""
        rows, vectors = target.gemm_tile
        return min(rows, (target.registers - self.spare) // vectors - 1) // self.rows * self.rows


def dot_of(target: Target) -> Dot:
    """The best that ``target`` has."""
    if target.has("avx512vnni"):
        return Dot("vpdpbusd", 4, 32, _vpdpbusd, _word, offset=128)
    if target.machine == "x86_64":
        return Dot("vpmaddubsw", 4, 32, _vpmaddubsw, _word, spare=4 if target.vector_bits == 256 else 8)
    if target.scalable_bits > 128:
        return Dot("sdot", 4, 32, functools.partial(_scalable_sdot, target.scalable_bits), _word)
    if target.has("i8mm"):
        return Dot("smmla", 8, 64, _smmla, _pair_of_rows, rows=2)
    if target.has("dotprod"):
        return Dot("sdot", 4, 32, _sdot, _word)
    if target.machine == "riscv64":
        return Dot("vwmacc", 2, 8, _widening, _bytes, spare=4)
    return Dot("saddw", 2, 8, _widening, _bytes, spare=16)


def rows_of(dot: Dot, sums: Val) -> list[Val]:
    """The sums of each row of x: i32 [lanes]."""
    if dot.rows == 1:
        return [sums]
    lanes = range(sums.lanes or 0)  # two outputs of the first row, the same of the second, the next two of the first
    return [shuffle(sums, sums, [lane for lane in lanes if lane % 4 // 2 == row]) for row in range(2)]


def starts(dot: Dot, values: Val) -> Val:
    """Sums that start from i32 [lanes], the same in each row: the inverse of :func:`rows_of`."""
    if dot.rows == 1:
        return values
    lanes = [pair + lane for pair in range(0, values.lanes or 0, 2) for _ in range(2) for lane in range(2)]
    return shuffle(values, values, lanes)


def _word(codes: Sequence[Val], lanes: int) -> Val:
    """Four codes of one row, beside the four of every output."""
    return reinterpret(splat(reinterpret(codes[0], "i32")[0], lanes), "i8")


def _pair_of_rows(codes: Sequence[Val], lanes: int) -> Val:
    """Eight codes of one row, then of another."""
    return shuffle(codes[0], codes[1], range(16))


def _bytes(codes: Sequence[Val], lanes: int) -> list[Val]:
    return [splat(codes[0][k], lanes) for k in range(codes[0].lanes or 0)]


def _vpdpbusd(sums: Val, weights: Sequence[Val], x: Val | Sequence[Val]) -> Val:
    """AVX-512 VNNI: unsigned x times signed weights; it wraps, so an offset of x can be taken back at any time."""
    return _intrinsic(f"llvm.x86.avx512.vpdpbusd.{_width(sums)}", sums, sums, x, weights[0])


def _vpmaddubsw(sums: Val, weights: Sequence[Val], x: Val | Sequence[Val]) -> Val:
    """AVX2 and AVX-512 BW: |x| times weights with x's sign. Pairs reach 2 · 127 · 127 = 32258 and never saturate;
    with codes of -128, or with x made unsigned by an offset, they would (at 32767)."""
    assert isinstance(x, Val)
    negative = x < 0
    width = _width(sums)
    if width == 256:
        signed = _intrinsic("llvm.x86.avx2.psign.b", x, weights[0], x)
    else:
        signed = select(negative, 0 - weights[0], weights[0])
    pairs = const(0, "i16", lanes=2 * (sums.lanes or 0))
    names = ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")
    if width == 512:
        names = ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")
    pairs = _intrinsic(names[0], pairs, select(negative, 0 - x, x), signed)
    return sums + _intrinsic(names[1], sums, pairs, const(1, pairs.type))


def _sdot(sums: Val, weights: Sequence[Val], x: Val | Sequence[Val]) -> Val:
    """Armv8.2 dot product."""
    return _intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", sums, sums, weights[0], x)


def _scalable_sdot(bits: int, sums: Val, weights: Sequence[Val], x: Val | Sequence[Val]) -> Val:
    """SVE's dot product: vectors of known length lie in scalable ones, of which they fill all."""
    assert isinstance(x, Val)

    def scalable(value: Val) -> Val:
        lanes = (value.lanes or 0) * 128 // bits
        empty = ir.Attribute.parse(f"dense<0> : vector<[{lanes}]x{value.element}>")
        return Val(vector.scalable_insert(value.ssa, arith.constant(empty.type, empty), 0))

    own = scalable(sums)
    added = _intrinsic("llvm.aarch64.sve.sdot.nxv4i32", own, own, scalable(weights[0]), scalable(x))
    return Val(vector.scalable_extract(sums.type, added.ssa, 0))


def _smmla(sums: Val, weights: Sequence[Val], x: Val | Sequence[Val]) -> Val:
    """Armv8.6 i8mm: two rows of x times two outputs, eight inputs each."""
    halves = []
    for half in range(2):
        own = shuffle(sums, sums, range(4 * half, 4 * half + 4))
        codes = shuffle(weights[0], weights[0], range(16 * half, 16 * half + 16))
        halves.append(_intrinsic("llvm.aarch64.neon.smmla.v4i32.v16i8", own, own, x, codes))
    return shuffle(halves[0], halves[1], range(8))


def _widening(sums: Val, weights: Sequence[Val], x: Val | Sequence[Val]) -> Val:
    """Everywhere: two products in 16 bits, 2 · 127 · 127 at most, added to 32 bits."""
    assert not isinstance(x, Val)
    products = [cast(w, "i16") * cast(own, "i16") for w, own in zip(weights, x, strict=True)]
    return sums + cast(products[0] + products[1], "i32")


def _width(value: Val) -> int:
    """Bits of a vector."""
    return (value.lanes or 1) * ir.IntegerType(value.element).width


def _intrinsic(name: str, like: Val, *operands: Val | Sequence[Val]) -> Val:
    """A call of an LLVM intrinsic whose result has the type of ``like``."""
    arguments = [operand.ssa for operand in operands if isinstance(operand, Val)]
    return Val(llvm.call_intrinsic(like.type, ir.StringAttr.get(name), arguments, [], []))
