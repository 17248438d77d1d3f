"""A region: tensor operations over one iteration space, to become one kernel with one loop nest.

A region owns *axes*, the loops, each with a size. A value of the region varies over some of them: ``Value.axes`` says,
for each dimension of the value's PyTorch shape, which loop it follows, or None where all elements are equal.
Broadcasting, permuting, inserting and dropping dimensions of size 1 are then only different readings of one value.

Operations that do not fit the iteration space raise :class:`Misfit`; their operands must be stored first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from anvil.lower.generic.axes import Axes
from anvil.lower.generic.num import Num, maximum, minimum, select
from anvil.lower.generic.steps import Body, Combine, Misfit, Operand, Step, Value
from anvil.lower.sizes import broadcast_size, broadcast_stride, same
from anvil.lower.values import Tensor
from anvil.runtime.plan import Size, View

MAX_OPERANDS = 16
MAX_STEPS = 64
_MAX_REPEATED = 4  # cheap values that may be computed again for turns of a loop they do not vary over


class Region:
    """Steps in order, each computing from earlier ones. ``reduced`` are the loops that reductions run over."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._axes = Axes()
        self._reduced: frozenset[int] = frozenset()
        self._loaded: dict[Tensor, tuple[int | None, ...]] = {}

    @property
    def reduced(self) -> frozenset[int]:
        return frozenset(map(self._axes.find, self._reduced))

    def loops(self, step: int) -> tuple[int, ...]:
        """The loops step ``step`` varies over, ascending."""
        return tuple(sorted({self._axes.find(loop) for loop in self.steps[step].loops}))

    def loop(self, axis: int) -> int:
        """The loop that ``axis`` of a value is by now."""
        return self._axes.find(axis)

    def size(self, loop: int) -> Size:
        """How often ``loop`` turns."""
        return self._axes.size(loop)

    def finished(self) -> list[Step]:
        """The steps with the loops that are left, ascending, and the views of inputs to match."""
        return [self._finished(index, step) for index, step in enumerate(self.steps)]

    def check(self) -> None:
        """Raise Misfit if something would be computed again and again, for turns of a loop it does not vary over."""
        used = {loop for step in range(len(self.steps)) for loop in self.loops(step)}
        parallel = used - self.reduced
        computed = [i for i, step in enumerate(self.steps) if step.kind in ("map", "reduce") and not step.virtual]
        repeated = [self.steps[i] for i in computed if self.loops(i) and not parallel <= set(self.loops(i))]
        if len(repeated) > _MAX_REPEATED or not all(step.cheap for step in repeated):
            raise Misfit("a value would be computed again for each turn of a loop")

    def map(
        self, body: Body, operands: Sequence[Operand], shape: Sequence[Size], dtype: str, *, cheap: bool = False
    ) -> Value:
        """``body`` of the operands, element by element, broadcast to ``shape``. ``body`` takes and returns Nums."""
        axes = self._align(operands, shape)
        step = self._map(body, [self._enter(operand, axes) for operand in operands], dtype, cheap)
        return Value(step, dtype, self._followed(step, axes), tuple(shape))

    def convert(self, operand: Operand, dtype: str) -> Value:
        """``operand`` as a value of type ``dtype``."""
        value = self.load(operand)
        if value.dtype == dtype:
            return value
        return self.map(lambda x: x.to(dtype), [value], value.shape, dtype, cheap=True)

    def reduce(self, combine: Combine, operands: Sequence[Value], dims: Sequence[int], keepdim: bool = False) -> Value:
        """Fold dimensions ``dims`` of values of equal type and rank away.

        ``sum_of_products`` takes two operands and adds up ``fma(a, b, sum)``; the others take one.
        """
        first = operands[0]
        axes = [self._common(operands, dim) for dim in range(len(first.axes))]
        shape = [broadcast_size(value.shape[dim] for value in operands) for dim in range(len(axes))]
        self.require(all(axes[dim] is not None or same(shape[dim], 1) for dim in dims))
        over = frozenset(axis for dim in dims if (axis := axes[dim]) is not None)
        kept = [dim for dim in range(len(axes)) if keepdim or dim not in dims]
        left = tuple(None if dim in dims else axes[dim] for dim in kept)
        left_shape = tuple(1 if dim in dims else shape[dim] for dim in kept)
        if not over:
            step = self._fold_one(operands)
            return Value(step, first.dtype, self._followed(step, left), left_shape)
        self.require(not self.reduced or over == self.reduced)
        self._reduced = over
        walked = {loop for value in operands for loop in self.loops(value.step)}
        steps = tuple(value.step for value in operands)
        if not over <= walked:  # a number that is the same everywhere is folded as often as it stands there
            steps = (self._along(first, over), *steps[1:])
        step = self._add(Step("reduce", first.dtype, tuple(sorted(walked - over)), steps, combine=combine))
        return Value(step, first.dtype, self._followed(step, left), left_shape)

    def gather(
        self, source: Operand, index: Sequence[Operand | int], shape: Sequence[Size], *, wrap: bool = False
    ) -> Value:
        """Elements of ``source``, which is no value of a region. Its dimension i is indexed by ``index[i]``: integers
        that broadcast to ``shape``, or a number, for the turn of that dimension of ``shape`` itself.

        With ``wrap`` negative indices count from the end. What is outside the source is moved to its nearest element.
        """
        if not isinstance(source, Tensor):
            raise Misfit("what is computed in a region cannot be gathered from")
        axes = self._align([i for i in index if not isinstance(i, int)], shape)
        for dim in (i for i in index if isinstance(i, int)):
            axes[dim] = self.new_axis(shape[dim]) if axes[dim] is None else axes[dim]
        steps = [
            self._turn(axes[i]) if isinstance(i, int) else self._inside(self._enter(i, axes), size, wrap)
            for i, size in zip(index, source.shape, strict=True)
        ]
        if source.generator is not None:
            step = self._generate_at(source, steps)
            return Value(step, source.dtype, self._followed(step, axes), tuple(shape))
        if not steps:
            return Value(self._enter(source, ()), source.dtype, tuple(axes), tuple(shape))  # rank 0: nothing to pick
        loops = tuple(sorted({loop for step in steps for loop in self.loops(step)}))
        step = self._add(Step("gather", source.dtype, loops, tuple(steps), view=source.view))
        return Value(step, source.dtype, self._followed(step, axes), tuple(shape))

    def spread(self, value: Value) -> Value:
        """The same value with a loop along every dimension that has more than one element."""
        if all(axis is not None or same(size, 1) for axis, size in zip(value.axes, value.shape, strict=True)):
            return value
        pairs = zip(value.axes, value.shape, strict=True)
        axes = tuple(self.new_axis(size) if axis is None else axis for axis, size in pairs)
        step = self._along(value, (axis for axis in axes if axis is not None))
        return Value(step, value.dtype, axes, value.shape)

    def _along(self, value: Value, loops: Iterable[int]) -> int:
        """A step that is ``value`` at every turn of ``loops`` too."""
        turned = tuple(sorted({*self.loops(value.step), *loops}))
        return self._add(Step("map", value.dtype, turned, (value.step,), body=lambda x: x))

    def scalar(self, size: Size | float, dtype: str) -> Value:
        """A number known when the plan is bound (i64) or compiled, as a value of rank 0."""
        return Value(self._add(Step("scalar", dtype, (), size=size, virtual=True)), dtype, (), ())

    def load(self, operand: Operand, *, apart: bool = False) -> Value:
        """``operand`` as a value. One loaded before follows the same loops again, unless it must stand ``apart``."""
        if isinstance(operand, Value):
            return operand
        axes = None if apart else self._loaded.get(operand)
        if axes is None:
            axes = tuple(self.new_axis(size) for size in operand.shape)
        return Value(self._enter(operand, axes), operand.dtype, axes, operand.shape)

    def new_axis(self, size: Size) -> int | None:
        """A new loop of ``size`` turns; None if it turns once."""
        return None if same(size, 1) else self._axes.new(size)

    def join(self, a: int, b: int) -> None:
        """Make two loops one. Raises Misfit where a value follows both, or their lengths may differ."""
        a, b = self._axes.find(a), self._axes.find(b)
        if a != b:
            self.require(same(self.size(a), self.size(b)))
            self.require(not any({a, b} <= set(self.loops(step)) for step in range(len(self.steps))))
            self._axes.join(a, b)

    def require(self, condition: bool) -> None:
        """Raise Misfit unless ``condition`` holds."""
        if not condition:
            raise Misfit("operands do not follow the same loops")

    def _align(self, operands: Sequence[Operand], shape: Sequence[Size]) -> list[int | None]:
        """The loop behind each dimension of ``shape``."""
        readings = [reading for operand in operands if (reading := self._reading(operand, shape)) is not None]
        axes: list[int | None] = []
        for dim, size in enumerate(shape):
            found = [axis for reading in readings if (axis := _at(reading, dim, len(shape))) is not None]
            for axis in found:
                self.require(same(self.size(axis), size))
                self.join(found[0], axis)
            axes.append(found[0] if found else None)
        for dim, size in enumerate(shape):
            if axes[dim] is None and _widens(operands, dim, len(shape)):
                shared = self._reduced_axis(size, axes)
                axes[dim] = self.new_axis(size) if shared is None else shared
        self.require_apart(axes)
        return axes

    def require_apart(self, axes: Iterable[int | None]) -> None:
        """Raise Misfit if two dimensions would follow one loop, as those of ``y[:, None] * y`` for a value y: only the
        diagonal would be computed. Read from memory, y may follow two loops."""
        loops = [self._axes.find(axis) for axis in axes if axis is not None]
        self.require(len(set(loops)) == len(loops))

    def _reading(self, operand: Operand, shape: Sequence[Size]) -> tuple[int | None, ...] | None:
        """The loops an operand follows already; None if it may follow any."""
        if isinstance(operand, Value):
            return operand.axes
        axes, own = self._loaded.get(operand), shape[len(shape) - len(operand.shape) :]
        whole = axes is not None and all(same(a, b) for a, b in zip(operand.shape, own, strict=True))
        return axes if whole else None

    def _reduced_axis(self, size: Size, taken: Iterable[int | None]) -> int | None:
        """A loop that reductions run over and that a dimension of ``size`` could follow too."""
        free = self.reduced - {self._axes.find(axis) for axis in taken if axis is not None}
        return next((axis for axis in sorted(free) if same(self.size(axis), size)), None)

    def _enter(self, operand: Operand, axes: Sequence[int | None]) -> int:
        """The step of an operand whose dimensions follow the last of ``axes``."""
        if isinstance(operand, Value):
            return operand.step
        own = axes[len(axes) - len(operand.shape) :]
        strides: dict[int, Size] = {}
        for axis, size, stride in zip(own, operand.shape, operand.view.strides, strict=True):
            if axis is not None and not same(size, 1):
                strides[self._axes.find(axis)] = broadcast_stride(size, stride, self.size(axis))
        follows = (None if same(size, 1) else axis for axis, size in zip(own, operand.shape, strict=True))
        self._loaded.setdefault(operand, tuple(follows))
        if operand.generator is not None:
            return self._generate(operand, strides)
        loops = tuple(sorted(strides))
        view = View(
            operand.view.buffer,
            operand.view.offset,
            tuple(self.size(loop) for loop in loops),
            tuple(strides[loop] for loop in loops),
        )
        return self._once(Step("input", operand.dtype, loops, view=view))

    def _generate(self, operand: Tensor, strides: dict[int, Size]) -> int:
        """Compute the elements of a tensor that need not exist, at the turns of loops."""
        return self._generated(operand, [(self._turn(loop), s) for loop, s in strides.items() if not same(s, 0)])

    def _generate_at(self, operand: Tensor, indices: Sequence[int]) -> int:
        """The same at computed indices, one per dimension."""
        pairs = zip(indices, operand.view.strides, strict=True)
        return self._generated(operand, [(index, stride) for index, stride in pairs if not same(stride, 0)])

    def _generated(self, operand: Tensor, terms: Sequence[tuple[int, Size]]) -> int:
        """Elements from their linear positions: the offset, and each of the terms times its stride."""
        factors = [self.scalar(size, "i64").step for size in (operand.view.offset, *(stride for _, stride in terms))]
        generator = operand.generator
        assert generator is not None

        def body(offset: Num, *numbers: Num) -> Num:
            position = offset
            for stride, turn in zip(numbers[: len(terms)], numbers[len(terms) :], strict=True):
                position = position + stride * turn
            return generator(position)

        return self._map(body, [*factors, *(step for step, _ in terms)], operand.dtype)

    def _turn(self, axis: int | None) -> int:
        """The number of the turn of a loop."""
        if axis is None:
            return self.scalar(0, "i64").step
        return self._once(Step("iota", "i64", (self._axes.find(axis),), virtual=True))

    def _inside(self, index: int, size: Size, wrap: bool) -> int:
        """An index that exists."""

        def body(i: Num, size: Num) -> Num:
            wide = i.to("i64")
            if wrap:
                wide = select(wide < 0, wide + size, wide)
            return maximum(minimum(wide, size - 1), 0)

        return self._map(body, [index, self.scalar(size, "i64").step], "i64", cheap=True)

    def _fold_one(self, operands: Sequence[Value]) -> int:
        """A reduction over a single element."""
        steps = [value.step for value in operands]
        return steps[0] if len(steps) == 1 else self._map(lambda a, b: a * b, steps, operands[0].dtype)

    def _common(self, operands: Sequence[Value], dim: int) -> int | None:
        """The loop that dimension ``dim`` of a combination of ``operands`` follows."""
        return next((self._axes.find(axis) for value in operands if (axis := value.axes[dim]) is not None), None)

    def _map(self, body: Body, steps: Sequence[int], dtype: str, cheap: bool = False) -> int:
        loops = sorted({loop for step in steps for loop in self.loops(step)})
        virtual = all(self.steps[step].virtual for step in steps)
        return self._add(Step("map", dtype, tuple(loops), tuple(steps), body=body, cheap=cheap, virtual=virtual))

    def _followed(self, step: int, axes: Sequence[int | None]) -> tuple[int | None, ...]:
        """``axes`` without those that the step does not vary over."""
        loops = self.loops(step)
        return tuple(axis if axis is not None and self._axes.find(axis) in loops else None for axis in axes)

    def _once(self, step: Step) -> int:
        return self.steps.index(step) if step in self.steps else self._add(step)

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        inputs = sum(step.view is not None for step in self.steps)
        if sum(not step.virtual for step in self.steps) > MAX_STEPS or inputs > MAX_OPERANDS:
            raise Misfit("the region is large enough")
        return len(self.steps) - 1

    def _finished(self, index: int, step: Step) -> Step:
        loops = self.loops(index)
        if step.kind != "input" or step.view is None:
            return replace(step, loops=loops)
        strides = {self._axes.find(loop): stride for loop, stride in zip(step.loops, step.view.strides, strict=True)}
        sizes = tuple(self.size(loop) for loop in loops)
        view = replace(step.view, sizes=sizes, strides=tuple(strides[loop] for loop in loops))
        return replace(step, loops=loops, view=view)


def _at(items: Sequence, dim: int, rank: int, default: object = None):
    """Item of a right-aligned sequence at ``dim`` of a shape of ``rank`` dimensions."""
    own = dim - (rank - len(items))
    return items[own] if own >= 0 else default


def _widens(operands: Sequence[Operand], dim: int, rank: int) -> bool:
    """Whether an operand in memory has more than one element along a dimension."""
    sizes = [_at(operand.shape, dim, rank, default=1) for operand in operands if isinstance(operand, Tensor)]
    return any(not same(size, 1) for size in sizes)
