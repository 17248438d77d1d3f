"""A region: tensor operations over one iteration space, to become one kernel with one loop nest.

A region owns *axes*, the loops, each with a size. A value of the region varies over some of them: ``Value.axes`` says,
for each dimension of the value's PyTorch shape, which loop it follows, or None where the size is 1. Broadcasting,
permuting, inserting and dropping dimensions of size 1 are then only different readings of the same value.

Operations that do not fit the iteration space raise :class:`Misfit`; their operands must be stored first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from anvil.lower.generic.num import Num, maximum, minimum, select
from anvil.lower.sizes import broadcast_size, broadcast_stride, same
from anvil.lower.values import Tensor
from anvil.runtime.plan import Size, View

Body = Callable[..., Num]
Combine = Literal["sum", "prod", "max", "min", "any", "all", "sum_of_products"]
MAX_OPERANDS = 16
MAX_STEPS = 64


class Misfit(Exception):
    """The operation does not share the region's iteration space."""


@dataclass(frozen=True)
class Value:
    """What step ``step`` of a region computes, read in a PyTorch shape.

    ``axes`` has the loop that each dimension follows. None: all elements along that dimension are equal.
    """

    step: int
    dtype: str
    axes: tuple[int | None, ...]
    shape: tuple[Size, ...]

    def remap(self, dims: Sequence[int | None], shape: Sequence[Size]) -> Value:
        """The same value where dimension i is what dimension ``dims[i]`` was (None: a new one)."""
        axes = tuple(None if dim is None else self.axes[dim] for dim in dims)
        return Value(self.step, self.dtype, axes, tuple(shape))


@dataclass(frozen=True)
class Step:
    """One operation. ``loops`` are the loops its result varies over, ascending. ``free``: computed from loop indices
    alone, so cheap to compute again."""

    kind: Literal["input", "scalar", "iota", "map", "reduce", "gather"]
    dtype: str
    loops: tuple[int, ...]
    operands: tuple[int, ...] = ()
    body: Body | None = None
    combine: Combine | None = None
    view: View | None = None  # an input, one size and stride per loop; or what is gathered from, in its own dimensions
    size: Size | float = 0  # a scalar
    free: bool = False


Operand = Value | Tensor


@dataclass
class Region:
    """Steps in order, each computing from earlier ones. ``reduced`` are the loops that reductions run over."""

    axes: list[Size] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reduced: frozenset[int] | None = None

    def copy(self) -> Region:
        return Region(list(self.axes), list(self.steps), self.reduced)

    def map(self, body: Body, operands: Sequence[Operand], shape: Sequence[Size], dtype: str) -> Value:
        """``body`` of the operands, element by element, broadcast to ``shape``. ``body`` takes and returns Nums."""
        axes = self._align(operands, shape)
        steps = [self._enter(operand, axes) for operand in operands]
        step = self._map(body, steps, dtype)
        loops = self.steps[step].loops
        return Value(step, dtype, tuple(axis if axis in loops else None for axis in axes), tuple(shape))

    def reduce(self, combine: Combine, operands: Sequence[Value], dims: Sequence[int], keepdim: bool = False) -> Value:
        """Fold dimensions ``dims`` of values of equal type and axes away.

        ``sum_of_products`` takes two operands and adds up ``fma(a, b, sum)``; the others take one.
        """
        first = operands[0]
        if any(first.axes[dim] is None and not same(first.shape[dim], 1) for dim in dims):
            raise Misfit("a reduction over equal elements has no loop")
        over = frozenset(axis for dim in dims if (axis := first.axes[dim]) is not None)
        kept = [dim for dim in range(len(first.axes)) if keepdim or dim not in dims]
        shape = tuple(1 if dim in dims else broadcast_size(v.shape[dim] for v in operands) for dim in kept)
        axes = [None if dim in dims else self._common(operands, dim) for dim in kept]
        if not over:
            return self._fold_one(operands, axes, shape)
        if self.reduced is not None and over != self.reduced:
            raise Misfit("reductions over different loops")
        self.reduced = over
        loops = sorted({loop for value in operands for loop in self.steps[value.step].loops} - over)
        steps = tuple(value.step for value in operands)
        step = self._add(Step("reduce", first.dtype, tuple(loops), steps, combine=combine))
        return Value(step, first.dtype, tuple(axes), shape)

    def _common(self, operands: Sequence[Value], dim: int) -> int | None:
        """The loop that dimension ``dim`` of a combination of ``operands`` follows."""
        return next((value.axes[dim] for value in operands if value.axes[dim] is not None), None)

    def _fold_one(self, operands: Sequence[Value], axes: list[int | None], shape: tuple[Size, ...]) -> Value:
        """A reduction over a single element."""
        steps = [value.step for value in operands]
        if len(steps) == 2:
            steps = [self._map(lambda a, b: a * b, steps, operands[0].dtype)]
        return Value(steps[0], operands[0].dtype, tuple(axes), shape)

    def gather(
        self, source: Operand, index: Sequence[Operand | int], shape: Sequence[Size], *, wrap: bool = False
    ) -> Value:
        """Elements of ``source``, which must be in memory. Its dimension i is indexed by ``index[i]``: integers that
        broadcast to ``shape``, or a number, for the turn of that dimension of ``shape`` itself.

        With ``wrap`` negative indices count from the end. What is outside the source is moved to its nearest element.
        """
        if not isinstance(source, Tensor) or source.generator is not None:
            raise Misfit("only tensors in memory can be gathered from")
        axes = self._align([i for i in index if not isinstance(i, int)], shape)
        for dim in (i for i in index if isinstance(i, int)):
            axes[dim] = self.grow(shape[dim]) if axes[dim] is None else axes[dim]
        steps = [
            self._turn(axes[i]) if isinstance(i, int) else self._inside(self._enter(i, axes), size, wrap)
            for i, size in zip(index, source.shape, strict=True)
        ]
        loops = tuple(sorted({loop for step in steps for loop in self.steps[step].loops}))
        step = self._add(Step("gather", source.dtype, loops, tuple(steps), view=source.view))
        return Value(step, source.dtype, tuple(axis if axis in loops else None for axis in axes), tuple(shape))

    def _turn(self, axis: int | None) -> int:
        if axis is None:
            return self.scalar(0, "i64").step
        return self._once(Step("iota", "i64", (axis,), free=True))

    def _inside(self, index: int, size: Size, wrap: bool) -> int:
        """An index that exists."""

        def body(i: Num, size: Num) -> Num:
            wide = i.to("i64")
            if wrap:
                wide = select(wide < 0, wide + size, wide)
            return maximum(minimum(wide, size - 1), 0)

        return self._map(body, [index, self.scalar(size, "i64").step], "i64")

    def spread(self, value: Value) -> Value:
        """The same value with a loop along every dimension that has more than one element."""
        axes = [
            self._new_axis(size) if axis is None and not same(size, 1) else axis
            for axis, size in zip(value.axes, value.shape, strict=True)
        ]
        loops = sorted({*self.steps[value.step].loops, *(axis for axis in axes if axis is not None)})
        step = self._add(Step("map", value.dtype, tuple(loops), (value.step,), body=lambda x: x))
        return Value(step, value.dtype, tuple(axes), value.shape)

    def scalar(self, size: Size | float, dtype: str) -> Value:
        """A number known when the plan is bound (i64) or compiled, as a value of rank 0."""
        return Value(self._add(Step("scalar", dtype, (), size=size, free=True)), dtype, (), ())

    def load(self, operand: Operand, axes: Sequence[int | None] | None = None) -> Value:
        """``operand`` as a value; loops are created for an external one, unless ``axes`` gives them."""
        if isinstance(operand, Value):
            return operand
        if axes is None:
            axes = [self.grow(size) for size in operand.view.sizes]
        step = self._enter(operand, list(axes))
        return Value(step, operand.dtype, tuple(axes), operand.view.sizes)

    def grow(self, size: Size) -> int | None:
        """A new loop of ``size`` turns; None if it turns once."""
        self._may_grow()
        return None if same(size, 1) else self._new_axis(size)

    def require(self, condition: bool) -> None:
        """Raise Misfit unless ``condition`` holds."""
        if not condition:
            raise Misfit("operands follow different loops")

    def _align(self, operands: Sequence[Operand], shape: Sequence[Size]) -> list[int | None]:
        """The loop behind each dimension of ``shape``."""
        axes: list[int | None] = []
        inside = [operand for operand in operands if isinstance(operand, Value)]
        for dim, size in enumerate(shape):
            found = {axis for value in inside if (axis := _at(value.axes, dim, len(shape))) is not None}
            if len(found) > 1:
                raise Misfit("one dimension follows two loops")
            axis = found.pop() if found else None
            if axis is not None and not same(self.axes[axis], size):
                raise Misfit("a dimension is not as long as the loop")
            if axis is None and self._widens(operands, dim, len(shape)):
                self._may_grow()
                axis = self._new_axis(size)
            axes.append(axis)
        return axes

    def _widens(self, operands: Sequence[Operand], dim: int, rank: int) -> bool:
        externals = [operand.view for operand in operands if isinstance(operand, Tensor)]
        sizes = [_at(view.sizes, dim, rank, default=1) for view in externals]
        return any(not same(size, 1) for size in sizes)

    def _may_grow(self) -> None:
        """Values already in the region would be computed again for each turn of a new loop: only cheap ones may."""
        if any(step.kind in ("map", "reduce") and not step.free for step in self.steps):
            raise Misfit("a new loop around values already computed")

    def _enter(self, operand: Operand, axes: Sequence[int | None]) -> int:
        if isinstance(operand, Value):
            return operand.step
        view = operand.view
        own = axes[len(axes) - len(view.sizes) :]
        by_loop = {}
        for axis, size, stride in zip(own, view.sizes, view.strides, strict=True):
            if axis is not None and not same(size, 1):
                by_loop[axis] = broadcast_stride(size, stride, self.axes[axis])
        loops = tuple(sorted(by_loop))
        if operand.generator is not None:
            return self._generate(operand, {loop: by_loop[loop] for loop in loops})
        read = View(view.buffer, view.offset, tuple(self.axes[i] for i in loops), tuple(by_loop[i] for i in loops))
        return self._once(Step("input", operand.dtype, loops, view=read))

    def _generate(self, operand: Tensor, strides: dict[int, Size]) -> int:
        """Compute the elements of a tensor that need not exist, from their linear positions."""
        terms = [(loop, stride) for loop, stride in strides.items() if not same(stride, 0)]
        turns = [self._once(Step("iota", "i64", (loop,), free=True)) for loop, _ in terms]
        factors = [self.scalar(size, "i64").step for size in (operand.view.offset, *(stride for _, stride in terms))]
        generator = operand.generator
        assert generator is not None

        def body(offset: Num, *numbers: Num) -> Num:
            position = offset
            for stride, turn in zip(numbers[: len(terms)], numbers[len(terms) :], strict=True):
                position = position + stride * turn
            return generator(position)

        return self._map(body, [*factors, *turns], operand.dtype)

    def _map(self, body: Body, steps: Sequence[int], dtype: str) -> int:
        loops = sorted({loop for step in steps for loop in self.steps[step].loops})
        free = all(self.steps[step].free for step in steps)
        return self._add(Step("map", dtype, tuple(loops), tuple(steps), body=body, free=free))

    def _once(self, step: Step) -> int:
        return self.steps.index(step) if step in self.steps else self._add(step)

    def _new_axis(self, size: Size) -> int:
        self.axes.append(size)
        return len(self.axes) - 1

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        inputs = sum(step.view is not None for step in self.steps)
        if len(self.steps) > MAX_STEPS or inputs > MAX_OPERANDS:
            raise Misfit("the region is large enough")
        return len(self.steps) - 1


def _at(items: Sequence, dim: int, rank: int, default: object = None):
    """Item of a right-aligned sequence at ``dim`` of a shape of ``rank`` dimensions."""
    own = dim - (rank - len(items))
    return items[own] if own >= 0 else default
