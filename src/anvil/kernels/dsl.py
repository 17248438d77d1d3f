"""A small language for writing kernels: SSA values with Python operators, loops and branches as ``with`` blocks.

    def body(x: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        with for_(tid, x.dim(0), nthreads) as row:
            y.store(x.load(row.index) * 2.0, row.index)

    kernel = define("twice", [memref("x", "in", "f32", 1), memref("y", "out", "f32", 1)], body)

Floating point means what it says: ``a * b + c`` rounds twice, ``fma(a, b, c)`` once, on every target. A reduction
over a vector is :func:`tree`, whose order is fixed, so all targets agree to the bit. Integers are signed where it
matters (comparison, ``min``, ``max``, ``>>``), but ``//`` and ``%`` are unsigned: sizes and positions only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anvil.mlir import arith, ir, math, vector
from anvil.mlir import memref as memref_dialect

LANES = 16
"""Lanes of every reduction and elementwise vector, on every target: LLVM splits or groups registers to fit."""

_COMPARE = {"lt": (4, 2), "le": (5, 3), "gt": (2, 4), "ge": (3, 5), "eq": (1, 0), "ne": (13, 1)}  # (float, signed)
_INFIX = {
    "add": (arith.addf, arith.addi),
    "sub": (arith.subf, arith.subi),
    "mul": (arith.mulf, arith.muli),
    "floordiv": (None, arith.divui),
    "mod": (None, arith.remui),
    "truediv": (arith.divf, None),
    "and": (None, arith.andi),
    "or": (None, arith.ori),
    "xor": (None, arith.xori),
    "lshift": (None, arith.shli),
    "rshift": (None, arith.shrsi),
}


class Val:
    """An SSA value: a scalar or a vector. Python numbers on the other side of an operator become constants."""

    __slots__ = ("ssa",)

    def __init__(self, ssa: ir.Value) -> None:
        self.ssa = ssa

    @property
    def type(self) -> ir.Type:
        return self.ssa.type

    @property
    def element(self) -> ir.Type:
        return _element_of(self.type)

    @property
    def lanes(self) -> int | None:
        """Lanes of a vector; None for a scalar."""
        return self.type.shape[0] if isinstance(self.type, ir.VectorType) else None

    def __getitem__(self, lane: int) -> Val:
        return Val(vector.extract(self.ssa, [], [lane]))

    def bits(self, element: str) -> Val:
        """The same bits read as another element type of the same width."""
        return Val(arith.bitcast(_like(self.type, _parse(element)), self.ssa))

    def __neg__(self) -> Val:
        return Val(arith.negf(self.ssa)) if _is_float(self.element) else 0 - self

    def __add__(self, other: Operand) -> Val:
        return _infix("add", self, other)

    def __sub__(self, other: Operand) -> Val:
        return _infix("sub", self, other)

    def __mul__(self, other: Operand) -> Val:
        return _infix("mul", self, other)

    def __truediv__(self, other: Operand) -> Val:
        return _infix("truediv", self, other)

    def __floordiv__(self, other: Operand) -> Val:
        return _infix("floordiv", self, other)

    def __mod__(self, other: Operand) -> Val:
        return _infix("mod", self, other)

    def __and__(self, other: Operand) -> Val:
        return _infix("and", self, other)

    def __or__(self, other: Operand) -> Val:
        return _infix("or", self, other)

    def __xor__(self, other: Operand) -> Val:
        return _infix("xor", self, other)

    def __lshift__(self, other: Operand) -> Val:
        return _infix("lshift", self, other)

    def __rshift__(self, other: Operand) -> Val:
        return _infix("rshift", self, other)

    def __radd__(self, other: Operand) -> Val:
        return _infix("add", other, self)

    def __rsub__(self, other: Operand) -> Val:
        return _infix("sub", other, self)

    def __rmul__(self, other: Operand) -> Val:
        return _infix("mul", other, self)

    def __rtruediv__(self, other: Operand) -> Val:
        return _infix("truediv", other, self)

    def __lt__(self, other: Operand) -> Val:
        return _compare("lt", self, other)

    def __le__(self, other: Operand) -> Val:
        return _compare("le", self, other)

    def __gt__(self, other: Operand) -> Val:
        return _compare("gt", self, other)

    def __ge__(self, other: Operand) -> Val:
        return _compare("ge", self, other)


Operand = Val | float


def _infix(name: str, left: Operand, right: Operand) -> Val:
    known = left if isinstance(left, Val) else right
    assert isinstance(known, Val)
    operands = [side if isinstance(side, Val) else const(side, known.type) for side in (left, right)]
    operation = _INFIX[name][0 if _is_float(known.element) else 1]
    if operation is None:
        raise TypeError(f"kernel DSL: operator {name!r} is not defined on {known.type}")
    return Val(operation(operands[0].ssa, operands[1].ssa))


def _compare(name: str, left: Val, right: Operand) -> Val:
    other = right if isinstance(right, Val) else const(right, left.type)
    ordered, signed = _COMPARE[name]
    if _is_float(left.element):
        return Val(arith.cmpf(ordered, left.ssa, other.ssa))
    return Val(arith.cmpi(signed, left.ssa, other.ssa))


def eq(left: Val, right: Operand) -> Val:
    """Equal; on floats false when a side is NaN. (``==`` stays Python's identity.)"""
    return _compare("eq", left, right)


def ne(left: Val, right: Operand) -> Val:
    """Not equal; on floats true when a side is NaN."""
    return _compare("ne", left, right)


def _is_float(element: ir.Type) -> bool:
    return isinstance(element, ir.FloatType)


def _parse(name: str) -> ir.Type:
    return ir.Type.parse(name)


def _element_of(kind: ir.Type) -> ir.Type:
    return kind.element_type if isinstance(kind, ir.VectorType) else kind


def _like(shape: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType.get(shape.shape, element) if isinstance(shape, ir.VectorType) else element


def const(value: float, kind: ir.Type | str, *, lanes: int | None = None, like: Val | None = None) -> Val:
    """A constant of type ``kind`` (an element type's name, or any type); a vector of ``lanes``, or shaped ``like``."""
    parsed = _parse(kind) if isinstance(kind, str) else kind
    if lanes is not None:
        parsed = ir.VectorType.get([lanes], parsed)
    if like is not None:
        parsed = _like(like.type, parsed)
    element = _element_of(parsed)
    scalar = ir.FloatAttr.get(element, value) if _is_float(element) else ir.IntegerAttr.get(element, int(value))
    if isinstance(parsed, ir.VectorType):
        return Val(arith.constant(parsed, ir.DenseElementsAttr.get_splat(parsed, scalar)))
    return Val(arith.constant(parsed, scalar))


def index(value: int | Val) -> Val:
    return value if isinstance(value, Val) else const(value, "index")


def iota(lanes: int = LANES, element: str = "i32") -> Val:
    """The vector 0, 1, .. lanes-1."""
    kind = ir.VectorType.get([lanes], _parse(element))
    values = [ir.IntegerAttr.get(_parse(element), lane) for lane in range(lanes)]
    return Val(arith.constant(kind, ir.DenseElementsAttr.get(values, kind)))


def splat(scalar: Val, lanes: int = LANES) -> Val:
    return Val(vector.broadcast(ir.VectorType.get([lanes], scalar.type), scalar.ssa))


def cast(value: Val, element: str) -> Val:
    """Convert to ``element``: floats and integers of any width and ``index``. Integers are signed; floats round to
    nearest even, to integers towards zero."""
    source, wanted = value.element, _parse(element)
    if source == wanted:
        return value
    if isinstance(source, ir.IndexType) and _is_float(wanted):
        return cast(cast(value, "i64"), element)
    if _is_float(wanted):
        wider = _is_float(source) and ir.FloatType(source).width < ir.FloatType(wanted).width
        convert = (arith.extf if wider else arith.truncf) if _is_float(source) else arith.sitofp
    elif isinstance(source, ir.IndexType) or isinstance(wanted, ir.IndexType):
        convert = arith.index_cast
    elif _is_float(source):
        convert = arith.fptosi
    else:
        convert = arith.extsi if ir.IntegerType(source).width < ir.IntegerType(wanted).width else arith.trunci
    return Val(convert(_like(value.type, wanted), value.ssa))


def fma(a: Val, b: Val, c: Val) -> Val:
    """a * b + c, rounded once."""
    return Val(math.fma(a.ssa, b.ssa, c.ssa))


def sqrt(value: Val) -> Val:
    """Correctly rounded square root."""
    return Val(math.sqrt(value.ssa))


def magnitude(value: Val) -> Val:
    """The absolute value, of NaN too."""
    return Val(math.absf(value.ssa))


def with_sign(value: Val, sign: Val) -> Val:
    """``value`` with the sign bit of ``sign``."""
    return Val(math.copysign(value.ssa, sign.ssa))


def shift_right(value: Val, count: int | Val) -> Val:
    """Unsigned shift (``>>`` is the signed one)."""
    shift = count if isinstance(count, Val) else const(count, value.type)
    return Val(arith.shrui(value.ssa, shift.ssa))


def select(condition: Val, yes: Val, no: Val) -> Val:
    return Val(arith.select(condition.ssa, yes.ssa, no.ssa))


def lesser(a: Val, b: Val) -> Val:
    """``a if a < b else b``: of a NaN and a number, the second operand."""
    return select(a < b, a, b)


def greater(a: Val, b: Val) -> Val:
    """``a if a > b else b``: of a NaN and a number, the second operand."""
    return select(a > b, a, b)


def first_lanes(count: Val, lanes: int = LANES) -> Val:
    """A mask of the first ``count`` (an index; any value) lanes."""
    mask = ir.VectorType.get([lanes], ir.IntegerType.get_signless(1))
    return Val(vector.create_mask(mask, [count.ssa]))


def ceil_div(value: Val, divisor: int | Val) -> Val:
    return (value + (divisor - 1)) // divisor


def shuffle(a: Val, b: Val, lanes: Sequence[int]) -> Val:
    """Pick ``lanes`` from the concatenation of two vectors."""
    return Val(vector.shuffle(a.ssa, b.ssa, list(lanes)))


def tree(value: Val, combine: Callable[[Val, Val], Val]) -> Val:
    """Reduce a vector to a scalar by halving: lane i with lane i + n/2, and so on, on every target."""
    lanes = value.lanes or 1
    while lanes > 1:
        half = lanes // 2
        value = combine(shuffle(value, value, range(half)), shuffle(value, value, range(half, lanes)))
        lanes = half
    return value[0]


@dataclass
class Ref:
    """A memref parameter or stack tile. Indices are :class:`Val` of type index, or Python integers."""

    ssa: ir.Value

    def dim(self, axis: int) -> Val:
        return Val(memref_dialect.dim(self.ssa, index(axis).ssa))

    def load(self, *at: Val | int, lanes: int | None = None, mask: Val | None = None, other: float = 0.0) -> Val:
        """A scalar, or ``lanes`` contiguous elements; lanes outside ``mask`` are not read and become ``other``."""
        place = [index(i).ssa for i in at]
        if lanes is None:
            return Val(memref_dialect.load(self.ssa, place))
        kind = ir.VectorType.get([lanes], ir.MemRefType(self.ssa.type).element_type)
        if mask is None:
            return Val(vector.load(kind, self.ssa, place))
        return Val(vector.maskedload(kind, self.ssa, place, mask.ssa, const(other, kind).ssa))

    def store(self, value: Val, *at: Val | int, mask: Val | None = None) -> None:
        """Store a scalar, a vector, or the lanes of a vector inside ``mask``."""
        place = [index(i).ssa for i in at]
        if value.lanes is None:
            memref_dialect.store(value.ssa, self.ssa, place)
        elif mask is None:
            vector.store(value.ssa, self.ssa, place)
        else:
            vector.maskedstore(self.ssa, place, mask.ssa, value.ssa)

    def prefetch(self, *at: Val | int) -> None:
        """Ask for the cache line of an element that is read soon. A hint: it changes nothing but time, and may point
        anywhere."""
        memref_dialect.prefetch(self.ssa, [index(i).ssa for i in at], False, 3, True)

    def at(self, *offsets: Val | int, rank: int) -> Ref:
        """The part of this memref from ``offsets`` on, its address computed once; the last ``rank`` axes are kept.

        ``w.at(p, k, rank=1).load(3)`` is ``w.load(p, k, 3)``.
        """
        kind, dynamic = self.ssa.type, ir.ShapedType.get_dynamic_size()
        starts = [*offsets, *[0] * (kind.rank - len(offsets))]
        sizes: list[Val | int] = []
        for axis, (start, size) in enumerate(zip(starts, kind.shape, strict=True)):
            whole = isinstance(start, int) and start == 0 and size != dynamic
            sizes.append(1 if axis < kind.rank - rank else size if whole else self.dim(axis) - start)
        strides = kind.get_strides_and_offset()[0][-rank:]
        layout = ir.StridedLayoutAttr.get(ir.ShapedType.get_dynamic_stride_or_offset(), strides)
        shape = [dynamic if isinstance(size, Val) else size for size in sizes[-rank:]]
        result = ir.MemRefType.get(shape, kind.element_type, layout)
        steps = [1] * kind.rank
        return Ref(memref_dialect.subview(self.ssa, _mixed(starts), _mixed(sizes), steps, result_type=result))


def _mixed(values: Sequence[Val | int]) -> list[ir.Value | int]:
    return [value.ssa if isinstance(value, Val) else value for value in values]


def stack(dtype: str, *shape: int) -> Ref:
    """A tile on the stack, uninitialised. Only at the top level of a kernel's body, never in a loop."""
    kind = ir.MemRefType.get(shape, _parse(dtype))
    return Ref(memref_dialect.alloca(kind, [], [], alignment=64))
