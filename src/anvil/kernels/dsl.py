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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import numpy as np

from anvil import mlir
from anvil.kernels.base import Kernel, Kind, Param
from anvil.mlir import InsertionPoint, arith, ir, math, scf, vector
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
        return ir.VectorType(self.type).element_type if isinstance(self.type, ir.VectorType) else self.type

    @property
    def lanes(self) -> int | None:
        """Lanes of a vector; None for a scalar."""
        return ir.VectorType(self.type).shape[0] if isinstance(self.type, ir.VectorType) else None

    def __getitem__(self, lane: int) -> Val:
        return Val(vector.extract(self.ssa, [], [lane]))

    def __neg__(self) -> Val:
        return Val(arith.negf(self.ssa)) if _is_float(self.element) else 0 - self

    def bits(self, element: str) -> Val:
        """The same bits read as another element type of the same width."""
        return Val(arith.bitcast(_like(self.type, _element(element)), self.ssa))


def _infix(name: str, swapped: bool) -> Callable[[Val, Val | float], Val]:
    def apply(self: Val, other: Val | float) -> Val:
        right = other if isinstance(other, Val) else const(other, self.type)
        left, right = (right, self) if swapped else (self, right)
        operation = _INFIX[name][0 if _is_float(left.element) else 1]
        if operation is None:
            raise TypeError(f"kernel DSL: operator {name!r} is not defined on {left.type}")
        return Val(operation(left.ssa, right.ssa))

    return apply


def _comparison(name: str) -> Callable[[Val, Val | float], Val]:
    def apply(self: Val, other: Val | float) -> Val:
        right = other if isinstance(other, Val) else const(other, self.type)
        ordered, signed = _COMPARE[name]
        if _is_float(self.element):
            return Val(arith.cmpf(ordered, self.ssa, right.ssa))
        return Val(arith.cmpi(signed, self.ssa, right.ssa))

    return apply


for _name in _INFIX:
    setattr(Val, f"__{_name}__", _infix(_name, swapped=False))
    setattr(Val, f"__r{_name}__", _infix(_name, swapped=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Val, f"__{_name}__", _comparison(_name))
eq = _comparison("eq")
ne = _comparison("ne")
"""Equality; on floats ``eq`` is false and ``ne`` true when a side is NaN. (``==`` stays Python's identity.)"""


def _is_float(element: ir.Type) -> bool:
    return isinstance(element, ir.FloatType)


def _element(name: str) -> ir.Type:
    return ir.Type.parse(name)


def _like(shape: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType.get(ir.VectorType(shape).shape, element) if isinstance(shape, ir.VectorType) else element


def const(value: float, kind: ir.Type | str, *, lanes: int | None = None, like: Val | None = None) -> Val:
    """A constant of type ``kind`` (an element type's name, or any type); a vector of ``lanes``, or shaped ``like``."""
    parsed = _element(kind) if isinstance(kind, str) else kind
    if lanes is not None:
        parsed = ir.VectorType.get([lanes], parsed)
    if like is not None:
        parsed = _like(like.type, parsed)
    element = ir.VectorType(parsed).element_type if isinstance(parsed, ir.VectorType) else parsed
    scalar = ir.FloatAttr.get(element, value) if _is_float(element) else ir.IntegerAttr.get(element, int(value))
    if isinstance(parsed, ir.VectorType):
        return Val(arith.constant(parsed, ir.DenseElementsAttr.get_splat(parsed, scalar)))
    return Val(arith.constant(parsed, scalar))


def index(value: int | Val) -> Val:
    return value if isinstance(value, Val) else const(value, "index")


def iota(lanes: int = LANES, element: str = "i32") -> Val:
    """The vector 0, 1, .. lanes-1."""
    kind = ir.VectorType.get([lanes], _element(element))
    return Val(arith.constant(kind, ir.DenseElementsAttr.get(np.arange(lanes, dtype=f"int{element[1:]}"))))


def splat(scalar: Val, lanes: int = LANES) -> Val:
    return Val(vector.broadcast(ir.VectorType.get([lanes], scalar.type), scalar.ssa))


def cast(value: Val, element: str) -> Val:
    """Convert to ``element``: floats and integers of any width (signed, rounded to nearest even) and ``index``."""
    source, wanted = value.element, _element(element)
    if source == wanted:
        return value
    if isinstance(source, ir.IndexType) and _is_float(wanted):
        return cast(cast(value, "i64"), element)
    if _is_float(wanted):
        wider = _is_float(source) and ir.FloatType(source).width < ir.FloatType(wanted).width
        convert = (arith.extf if wider else arith.truncf) if _is_float(source) else arith.sitofp
    elif isinstance(source, ir.IndexType) or isinstance(wanted, ir.IndexType):
        convert = arith.index_cast
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


def shift_right(value: Val, count: int) -> Val:
    """Unsigned shift (``>>`` is the signed one)."""
    return Val(arith.shrui(value.ssa, const(count, value.type).ssa))


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
        """Hint that the line at ``at`` will be read soon. Never faults, wherever it points."""
        memref_dialect.PrefetchOp(self.ssa, [index(i).ssa for i in at], False, 3, True)


def stack(dtype: str, *shape: int) -> Ref:
    """A tile on the stack, uninitialised. Only at the top level of a kernel's body, never in a loop."""
    kind = ir.MemRefType.get(shape, _element(dtype))
    return Ref(memref_dialect.alloca(kind, [], [], alignment=64))


Nest = Val | Sequence["Nest"]


@dataclass
class Loop:
    """A loop under construction: ``index`` and ``carry`` inside, ``results`` after; carried values may be nested."""

    index: Val
    carry: Nest
    results: Nest = ()
    _next: list[Val] = field(default_factory=list)

    def next(self, carry: Nest) -> None:
        """The carried values of the next iteration. Last statement of the body."""
        self._next = _flatten(carry)


@contextmanager
def for_(first: Val | int, last: Val | int, step: Val | int = 1, carry: Nest = ()) -> Iterator[Loop]:
    """``for index in range(first, last, step)``. With ``carry`` the body ends in ``loop.next(...)``."""
    operation = scf.ForOp(index(first).ssa, index(last).ssa, index(step).ssa, [v.ssa for v in _flatten(carry)])
    with InsertionPoint(operation.body):
        values = iter([Val(argument) for argument in operation.inner_iter_args])
        loop = Loop(Val(operation.induction_variable), _rebuild(carry, values))
        yield loop
        scf.YieldOp([value.ssa for value in loop._next])
    loop.results = _rebuild(carry, iter([Val(result) for result in operation.results]))


@contextmanager
def if_(condition: Val) -> Iterator[None]:
    with InsertionPoint(scf.IfOp(condition.ssa).then_block):
        yield
        scf.YieldOp([])


@contextmanager
def if_else(condition: Val) -> Iterator[tuple[InsertionPoint, InsertionPoint]]:
    """Two branches: ``with if_else(c) as (then, otherwise): with then: ...; with otherwise: ...``."""
    operation = scf.IfOp(condition.ssa, has_else=True)
    with InsertionPoint(operation.then_block):
        yes = scf.YieldOp([])
    with InsertionPoint(operation.else_block):
        no = scf.YieldOp([])
    yield InsertionPoint(yes), InsertionPoint(no)


def _flatten(nest: Nest) -> list[Val]:
    return [nest] if isinstance(nest, Val) else [leaf for child in nest for leaf in _flatten(child)]


def _rebuild(shape: Nest, values: Iterator[Val]) -> Nest:
    return next(values) if isinstance(shape, Val) else [_rebuild(child, values) for child in shape]


def ceil_div(value: Val, divisor: int | Val) -> Val:
    return (value + (divisor - 1)) // divisor


@dataclass(frozen=True)
class Argument:
    """A kernel parameter and its MLIR type."""

    param: Param
    type: str


def memref(name: str, kind: Kind, dtype: str, rank: int, *, inner: tuple[int, ...] = (), unit: bool = True) -> Argument:
    """A strided memref. ``inner``: static trailing sizes, dense; ``unit``: the innermost stride is 1."""
    sizes = ["?"] * (rank - len(inner)) + [str(size) for size in inner]
    known = [str(prod(inner[axis:])) for axis in range(len(inner) + 1)][-rank:] if unit else []
    strides = ["?"] * (rank - len(known)) + known
    shape = "x".join([*sizes, dtype])
    return Argument(Param(name, kind, dtype, rank), f"memref<{shape}, strided<[{', '.join(strides)}], offset: ?>>")


def scalar(name: str, dtype: str) -> Argument:
    return Argument(Param(name, "scalar", dtype, -1), dtype)


def define(
    name: str,
    arguments: Sequence[Argument],
    body: Callable[..., None],
    *,
    edges: Sequence[tuple[str, int]] = (),
) -> Kernel:
    """The kernel ``name``; ``body`` is called with a Ref or Val per argument, then ``tid`` and ``nthreads``."""
    with mlir.context(), mlir.Location.unknown():
        types = [ir.Type.parse(argument.type) for argument in arguments] + [ir.IndexType.get()] * 2
        module = mlir.Module.create()
        with InsertionPoint(module.body):
            function = mlir.func.FuncOp(name, (types, []))
        with InsertionPoint(function.add_entry_block()):
            values = list(function.arguments)
            wrapped = [Ref(v) if isinstance(v.type, ir.MemRefType) else Val(v) for v in values]
            body(*wrapped)
            mlir.func.ReturnOp([])
        module.operation.verify()
        return Kernel(name, tuple(argument.param for argument in arguments), str(module), tuple(edges))
