"""Scalar arithmetic with PyTorch's semantics, as MLIR: what the body of one element of an op is written in.

A :class:`Num` is an SSA value with one of PyTorch's element types. Both sides of an operator have the same type;
Python numbers become constants of it. ``u8`` and ``bool`` have no MLIR type of their own: ``ui8`` is computed on
``i8``, and a ``bool`` is ``i1`` in registers and a byte in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch

from anvil.dtypes import TORCH_OF_MLIR
from anvil.mlir import arith, ir, math

FLOATS = ("f64", "f32", "f16", "bf16")
Number = int | float | bool

_FLOAT_PREDICATES = {"lt": 4, "le": 5, "gt": 2, "ge": 3, "eq": 1, "ne": 13}
_SIGNED = {"lt": 2, "le": 3, "gt": 4, "ge": 5, "eq": 0, "ne": 1}
_UNSIGNED = {"lt": 6, "le": 7, "gt": 8, "ge": 9, "eq": 0, "ne": 1}


def register_type(dtype: str) -> ir.Type:
    """The MLIR type values of ``dtype`` have in registers."""
    return ir.Type.parse("i8" if dtype == "ui8" else dtype)


def bits_of(dtype: str) -> int:
    """Width of a value of ``dtype`` in a register."""
    return 64 if dtype == "index" else int(dtype.lstrip("uibf"))


class Undefined(TypeError):
    """An op's body asks for an operation that its element type does not have: PyTorch has no such op either."""


@dataclass(frozen=True)
class Num:
    """One element: ``ssa`` in a register, read as ``dtype``: f64, f32, f16, bf16, i64, i32, i16, i8, ui8, i1, index."""

    ssa: ir.Value
    dtype: str

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def const(self, value: Number) -> Num:
        """A constant of the same type."""
        return const(value, self.dtype)

    def to(self, dtype: str) -> Num:
        return convert(self, dtype)

    def __add__(self, other: Num | Number) -> Num:
        return _binary(self, other, arith.addf, arith.addi)

    def __radd__(self, other: Number) -> Num:
        return self + other

    def __sub__(self, other: Num | Number) -> Num:
        return _binary(self, other, arith.subf, arith.subi)

    def __rsub__(self, other: Number) -> Num:
        return self.const(other) - self

    def __mul__(self, other: Num | Number) -> Num:
        return _binary(self, other, arith.mulf, arith.muli)

    def __rmul__(self, other: Number) -> Num:
        return self * other

    def __truediv__(self, other: Num | Number) -> Num:
        return _binary(self, other, arith.divf, None)

    def __rtruediv__(self, other: Number) -> Num:
        return self.const(other) / self

    def __neg__(self) -> Num:
        return Num(arith.negf(self.ssa), self.dtype) if self.is_float else self.const(0) - self

    def __and__(self, other: Num | Number) -> Num:
        return _binary(self, other, None, arith.andi)

    def __or__(self, other: Num | Number) -> Num:
        return _binary(self, other, None, arith.ori)

    def __xor__(self, other: Num | Number) -> Num:
        return _binary(self, other, None, arith.xori)

    def __lt__(self, other: Num | Number) -> Num:
        return compare("lt", self, other)

    def __le__(self, other: Num | Number) -> Num:
        return compare("le", self, other)

    def __gt__(self, other: Num | Number) -> Num:
        return compare("gt", self, other)

    def __ge__(self, other: Num | Number) -> Num:
        return compare("ge", self, other)


def const(value: Number, dtype: str) -> Num:
    """A constant; integers wrap to the type's width."""
    kind = register_type(dtype)
    if dtype in FLOATS:
        return Num(arith.constant(kind, ir.FloatAttr.get(kind, float(value))), dtype)
    if dtype == "i1":
        return Num(arith.constant(kind, ir.IntegerAttr.get(kind, int(bool(value)))), dtype)
    half = 1 << (bits_of(dtype) - 1)
    wrapped = (int(value) + half) % (2 * half) - half
    return Num(arith.constant(kind, ir.IntegerAttr.get(kind, wrapped)), dtype)


def _binary(x: Num, y: Num | Number, on_float: Callable | None, on_integer: Callable | None) -> Num:
    other = y if isinstance(y, Num) else x.const(y)
    operation = on_float if x.is_float else on_integer
    if operation is None or other.dtype != x.dtype:
        raise Undefined(f"building an op's body: no such operation on {x.dtype} and {other.dtype}")
    return Num(operation(x.ssa, other.ssa), x.dtype)


def compare(predicate: str, x: Num, y: Num | Number) -> Num:
    """``lt``, ``le``, ``gt``, ``ge``, ``eq`` or ``ne`` (true if a side is NaN); the others are false on NaN."""
    other = y if isinstance(y, Num) else x.const(y)
    if x.dtype in ("f16", "bf16"):  # a target without such numbers would call a library to compare them
        x, other = convert(x, "f32"), convert(other, "f32")
    if x.is_float:
        return Num(arith.cmpf(_FLOAT_PREDICATES[predicate], x.ssa, other.ssa), "i1")
    table = _UNSIGNED if x.dtype in ("ui8", "i1") else _SIGNED
    return Num(arith.cmpi(table[predicate], x.ssa, other.ssa), "i1")


def select(condition: Num, yes: Num, no: Num) -> Num:
    return Num(arith.select(condition.ssa, yes.ssa, no.ssa), yes.dtype)


def maximum(x: Num, y: Num | Number) -> Num:
    """The larger; NaN if a side is NaN; +0 over -0."""
    return _extremum(x, y, arith.maximumf, arith.maxsi, arith.maxui)


def minimum(x: Num, y: Num | Number) -> Num:
    """The smaller; NaN if a side is NaN; -0 under +0."""
    return _extremum(x, y, arith.minimumf, arith.minsi, arith.minui)


def _extremum(x: Num, y: Num | Number, on_float: Callable, signed: Callable, unsigned: Callable) -> Num:
    return _binary(x, y, on_float, unsigned if x.dtype in ("ui8", "i1") else signed)


def fma(a: Num, b: Num, c: Num) -> Num:
    """a * b + c rounded once (floats); integers wrap."""
    return Num(math.fma(a.ssa, b.ssa, c.ssa), a.dtype) if a.is_float else a * b + c


def magnitude(x: Num) -> Num:
    """Absolute value; the smallest integer stays itself, as in PyTorch."""
    if x.is_float:
        return Num(math.absf(x.ssa), x.dtype)
    return x if x.dtype in ("ui8", "i1") else maximum(x, -x)


def function(name: str, *arguments: Num) -> Num:
    """An elementary function of the ``math`` dialect on floats: exp, log, sin, atan2, powf, floor, sqrt, rsqrt, ..."""
    if not all(x.is_float for x in arguments):
        raise Undefined(f"building an op's body: no {name} of {', '.join(x.dtype for x in arguments)}")
    return Num(getattr(math, name)(*(x.ssa for x in arguments)), arguments[0].dtype)


def remainder(x: Num, y: Num) -> Num:
    """x - n y with n = x / y rounded towards zero: exact on floats. Integers: by 0 it is x, by -1 it is 0."""
    if x.is_float:
        return Num(arith.remf(x.ssa, y.ssa), x.dtype)
    return x - safe_quotient(x, y) * y


def safe_quotient(x: Num, y: Num) -> Num:
    """x / y of integers, rounded towards zero, for any computed divisor, also in lanes past the end: nothing traps.

    By 0 it is 0. The smallest number over -1 wraps to itself.
    """
    unsigned = x.dtype in ("ui8", "i1")
    by_zero = compare("eq", y, 0)
    unsafe = by_zero if unsigned else by_zero | compare("eq", y, -1)
    divide = arith.divui if unsigned else arith.divsi
    found = Num(divide(x.ssa, select(unsafe, y.const(1), y).ssa), x.dtype)
    if not unsigned:
        found = select(compare("eq", y, -1), -x, found)
    return select(by_zero, x.const(0), found)


def shift(x: Num, count: Num, *, left: bool) -> Num:
    """Bits moved by ``count``; beyond the width, and by a negative count, nothing is left but the sign of x."""
    width, unsigned = bits_of(x.dtype), x.dtype == "ui8"
    if not left and not unsigned:
        return _signed_shift(x, count)
    inside = compare("lt", count, width) if unsigned else compare("ge", count, 0) & compare("lt", count, width)
    safe = select(inside, count, count.const(0))
    moved = (arith.shli if left else arith.shrui)(x.ssa, safe.ssa)
    return select(inside, Num(moved, x.dtype), x.const(0))


def _signed_shift(x: Num, count: Num) -> Num:
    """To the right, with copies of the sign. Two steps, the second by one bit or none.

    In one step LLVM would leave what is beyond the width to the instruction, as it may, and Bochs is wrong there: its
    ``vpsravq`` by 64 moves nothing.
    """
    last = count.const(bits_of(x.dtype) - 2)
    most = Num(arith.shrsi(x.ssa, arith.minui(count.ssa, last.ssa)), x.dtype)
    beyond = Num(arith.cmpi(_UNSIGNED["gt"], count.ssa, last.ssa), "i1")
    return select(beyond, Num(arith.shrsi(most.ssa, x.const(1).ssa), x.dtype), most)


def convert(x: Num, dtype: str) -> Num:
    """PyTorch's conversion: to nearest even between floats, towards zero to integers, ``!= 0`` to bool.

    What C++ leaves undefined is defined here the same on every target: a float outside the integer's range (or NaN)
    becomes the smallest i32 or i64, cut to the type's width, as x86 does.
    """
    if x.dtype == dtype:
        return x
    if dtype == "i1":
        return compare("ne", x, 0)
    if x.is_float:
        return _narrow_float(x, dtype) if dtype in FLOATS else _float_to_int(x, dtype)
    return _int_to_float(x, dtype) if dtype in FLOATS else _int_to_int(x, dtype)


def _narrow_float(x: Num, dtype: str) -> Num:
    if bits_of(x.dtype) == 64 and bits_of(dtype) == 16:  # PyTorch rounds twice, through f32
        return convert(convert(x, "f32"), dtype)
    if bits_of(x.dtype) == bits_of(dtype):
        return convert(convert(x, "f32"), dtype)
    operation = arith.extf if bits_of(dtype) > bits_of(x.dtype) else arith.truncf
    return Num(operation(register_type(dtype), x.ssa), dtype)


def _float_to_int(x: Num, dtype: str) -> Num:
    wide = "i64" if dtype in ("i64", "index") else "i32"
    if x.dtype in ("f16", "bf16"):
        x = convert(x, "f32")
    limit = 2.0 ** (bits_of(wide) - 1)
    inside = compare("lt", magnitude(x), limit)
    whole = Num(arith.fptosi(register_type(wide), select(inside, x, x.const(0.0)).ssa), wide)
    return convert(select(inside, whole, const(-(1 << (bits_of(wide) - 1)), wide)), dtype)


def _int_to_float(x: Num, dtype: str) -> Num:
    if dtype in ("f16", "bf16"):
        return convert(_int_to_float(x, "f32"), dtype)
    if x.dtype == "index":
        x = convert(x, "i64")
    operation = arith.uitofp if x.dtype in ("ui8", "i1") else arith.sitofp
    return Num(operation(register_type(dtype), x.ssa), dtype)


def _int_to_int(x: Num, dtype: str) -> Num:
    if x.dtype == "index":
        return convert(Num(arith.index_cast(register_type("i64"), x.ssa), "i64"), dtype)
    if dtype == "index":
        return Num(arith.index_cast(register_type("index"), convert(x, "i64").ssa), "index")
    have, want = bits_of(x.dtype), bits_of(dtype)
    if have == want:
        return Num(x.ssa, dtype)
    if want < have:
        return Num(arith.trunci(register_type(dtype), x.ssa), dtype)
    operation = arith.extui if x.dtype in ("ui8", "i1") else arith.extsi
    return Num(operation(register_type(dtype), x.ssa), dtype)


def lowest(dtype: str) -> Number:
    """The identity of ``maximum``."""
    if dtype in FLOATS:
        return -inf
    return 0 if dtype in ("ui8", "i1") else -(1 << (bits_of(dtype) - 1))


def highest(dtype: str) -> Number:
    """The identity of ``minimum``."""
    if dtype in FLOATS:
        return inf
    return (1 << bits_of(dtype)) - 1 if dtype in ("ui8", "i1") else (1 << (bits_of(dtype) - 1)) - 1


def largest_of(dtype: str) -> float:
    """The largest finite number of a floating-point type."""
    return torch.finfo(TORCH_OF_MLIR[dtype]).max
