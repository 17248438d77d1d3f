"""A loop nest as linalg on tensors: one structured op per step, destinations as arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anvil import mlir
from anvil.lower.generic.nest import Nest
from anvil.lower.generic.num import Num, const, fma, highest, lowest, maximum, minimum, register_type, select
from anvil.lower.generic.steps import Combine, Step
from anvil.mlir import InsertionPoint, arith, ir, linalg, tensor

SIMPLIFY = "canonicalize,cse,linalg-fuse-elementwise-ops,canonicalize,cse"
"""Upstream passes over the module: constants fold, producers with one consumer merge into it."""

Body = Callable[[list[ir.Value]], ir.Value]  # of an op's block: its arguments to what it yields

_IDENTITY = {
    "sum": lambda dtype: 0,
    "sum_of_products": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": lowest,
    "top": lowest,
    "min": highest,
    "any": lambda dtype: 0,
    "all": lambda dtype: 1,
}
_COMBINE = {
    "sum": lambda x, total: total + x,
    "prod": lambda x, total: total * x,
    "max": maximum,
    "top": lambda x, total: select(x > total, x, total),  # one instruction: passes NaN over, and zeros have no order
    "min": minimum,
    "any": lambda x, total: total | x,
    "all": lambda x, total: total & x,
    "sum_of_products": fma,
}


@dataclass(frozen=True)
class Signature:
    """Arguments of the function: the steps read, the steps written, the steps that are scalars known at bind time,
    and the loops that no memref tells the size of."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: tuple[int, ...]
    loops: tuple[int, ...]


def signature(nest: Nest) -> Signature:
    """In order of first use."""
    steps = list(enumerate(nest.steps))
    read = [step.loops for step in nest.steps if step.kind == "input"]
    told = {loop for loops in (*read, *(nest.steps[store].loops for store in nest.stores)) for loop in loops}
    return Signature(
        tuple(i for i, step in steps if step.kind in ("input", "gather")),
        nest.stores,
        tuple(i for i, step in steps if step.kind == "scalar" and not isinstance(step.size, (int, float))),
        tuple(loop for loop in range(len(nest.sizes)) if loop not in told),
    )


def build(nest: Nest) -> mlir.Module:
    """``func @region(inputs, destinations, scalars, sizes of loops) -> stored tensors``, in the current context."""
    return _Builder(nest).module()


class _Builder:
    """Walks the steps once; ``tensors[i]`` (or ``numbers[i]``) is what step i computed."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.signature = signature(nest)
        self.tensors: dict[int, ir.Value] = {}
        self.numbers: dict[int, Num] = {}
        self.sources: dict[int, ir.Value] = {}  # what is gathered from

    def module(self) -> mlir.Module:
        module = mlir.Module.create()
        kinds = self.signature
        inputs = [self._argument_type(step) for step in kinds.inputs]
        outputs = [self._tensor_type(step, memory=True) for step in kinds.outputs]
        scalars = [register_type(self.nest.steps[step].dtype) for step in kinds.scalars]
        sizes = [ir.IndexType.get()] * len(kinds.loops)
        with InsertionPoint(module.body):
            function = mlir.func.FuncOp("region", ([*inputs, *outputs, *scalars, *sizes], outputs))
        with InsertionPoint(function.add_entry_block()):
            arguments = list(function.arguments)
            given = dict(zip(kinds.inputs, arguments, strict=False))
            self.tensors = {i: ssa for i, ssa in given.items() if self.nest.steps[i].kind == "input"}
            self.sources = {i: ssa for i, ssa in given.items() if self.nest.steps[i].kind == "gather"}
            destinations = arguments[len(inputs) : len(inputs) + len(outputs)]
            numbers = iter(arguments[len(inputs) + len(outputs) :])
            for step in kinds.scalars:
                self.numbers[step] = Num(next(numbers), self.nest.steps[step].dtype)
            self._sizes = self._loop_sizes(destinations) | dict(zip(kinds.loops, numbers, strict=True))
            for index, step in enumerate(self.nest.steps):
                self._build(index, step)
            stored = [self._stored(step, to) for step, to in zip(kinds.outputs, destinations, strict=True)]
            mlir.func.ReturnOp(stored)
        return module

    def _tensor_type(self, index: int, memory: bool = False) -> ir.Type:
        step = self.nest.steps[index]
        element = register_type("ui8" if memory and step.dtype == "i1" else step.dtype)
        return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * len(step.loops), element)

    def _argument_type(self, index: int) -> ir.Type:
        step = self.nest.steps[index]
        if step.kind != "gather" or step.view is None:
            return self._tensor_type(index, memory=True)
        sizes = [ir.ShapedType.get_dynamic_size()] * len(step.view.sizes)
        return ir.RankedTensorType.get(sizes, register_type("ui8" if step.dtype == "i1" else step.dtype))

    def _loop_sizes(self, destinations: list[ir.Value]) -> dict[int, ir.Value]:
        sizes: dict[int, ir.Value] = {}
        sources = [*zip(self.signature.outputs, destinations, strict=True), *self.tensors.items()]
        for index, ssa in sources:
            for position, loop in enumerate(self.nest.steps[index].loops):
                if loop not in sizes:
                    sizes[loop] = tensor.dim(ssa, arith.constant(ir.IndexType.get(), position))
        return sizes

    def _build(self, index: int, step: Step) -> None:
        if step.kind == "scalar" and index not in self.numbers:
            self.numbers[index] = const(step.size, step.dtype)  # type: ignore[arg-type]
        elif step.kind == "input" and step.dtype == "i1":
            self.tensors[index] = self._bools(index, step)
        elif step.kind == "iota":
            self.tensors[index] = self._iota(index)
        elif step.kind == "map":
            self.tensors[index] = self._map(index, step)
        elif step.kind == "gather":
            self.tensors[index] = self._gather(index, step)
        elif step.kind == "reduce":
            self.tensors[index] = self._reduce(index, step)

    def _empty(self, index: int) -> ir.Value:
        sizes = [self._sizes[loop] for loop in self.nest.steps[index].loops]
        return tensor.EmptyOp(sizes, self._tensor_type(index).element_type).result

    def _iota(self, index: int) -> ir.Value:
        def body(_: list[ir.Value]) -> ir.Value:
            return Num(linalg.IndexOp(0).result, "index").to("i64").ssa

        return self._generic([], self._empty(index), self.nest.steps[index].loops, (), body)

    def _map(self, index: int, step: Step) -> ir.Value:
        def body(*values: Num) -> ir.Value:
            return step.body(*values).ssa  # type: ignore[misc]

        return self._elementwise(index, step, body)

    def _gather(self, index: int, step: Step) -> ir.Value:
        def body(*indices: Num) -> ir.Value:
            element = tensor.extract(self.sources[index], [i.to("index").ssa for i in indices])
            return (Num(element, "ui8").to("i1") if step.dtype == "i1" else Num(element, step.dtype)).ssa

        return self._elementwise(index, step, body)

    def _elementwise(self, index: int, step: Step, body: Callable[..., ir.Value]) -> ir.Value:
        """One generic op of the step's operands: tensors element by element, numbers as they are."""
        operands = list(dict.fromkeys(i for i in step.operands if i in self.tensors))

        def whole(elements: list[ir.Value]) -> ir.Value:
            values = {i: Num(ssa, self.nest.steps[i].dtype) for i, ssa in zip(operands, elements, strict=False)}
            return body(*(values[i] if i in values else self.numbers[i] for i in step.operands))

        return self._generic(operands, self._empty(index), step.loops, (), whole)

    def _bools(self, index: int, step: Step) -> ir.Value:
        """Bytes from memory as bools."""
        return self._generic([index], self._empty(index), step.loops, (), lambda x: Num(x[0], "ui8").to("i1").ssa)

    def _reduce(self, index: int, step: Step) -> ir.Value:
        combine: Combine = step.combine or "sum"
        identity = const(_IDENTITY[combine](step.dtype), step.dtype)
        initial = linalg.fill(identity.ssa, outs=[self._empty(index)])

        def body(elements: list[ir.Value]) -> ir.Value:
            return _COMBINE[combine](*(Num(ssa, step.dtype) for ssa in elements)).ssa

        over = tuple(sorted(self.nest.reduced))
        if len(step.operands) > 1:
            return self._generic(list(step.operands), initial, step.loops, over, body)
        operand = step.operands[0]
        loops = self.nest.steps[operand].loops
        operation = linalg.ReduceOp(
            [initial.type], [self.tensors[operand]], [initial], [loops.index(loop) for loop in over]
        )
        self._fill_body(operation, [str(register_type(step.dtype))] * 2, body)
        return operation.results[0]

    def _generic(
        self, operands: list[int], out: ir.Value, loops: Sequence[int], over: Sequence[int], body: Body
    ) -> ir.Value:
        """``linalg.generic`` over ``loops`` (parallel) and ``over`` (reduced), ascending together."""
        space = sorted([*loops, *over])
        maps = [_projection(space, self.nest.steps[i].loops) for i in operands] + [_projection(space, loops)]
        kinds = ["reduction" if loop in over else "parallel" for loop in space]
        iterators = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
        operation = linalg.GenericOp(
            [out.type], [self.tensors[i] for i in operands], [out], ir.ArrayAttr.get(maps), ir.ArrayAttr.get(iterators)
        )
        elements = [str(ir.RankedTensorType(self.tensors[i].type).element_type) for i in operands]
        self._fill_body(operation, [*elements, str(ir.RankedTensorType(out.type).element_type)], body)
        return operation.results[0]

    def _fill_body(self, operation: ir.OpView, elements: list[str], body: Body) -> None:
        types = [ir.Type.parse(element) for element in elements]
        block = operation.operation.regions[0].blocks.append(*types, arg_locs=None)
        with InsertionPoint(block):
            linalg.YieldOp([body(list(block.arguments))])

    def _stored(self, index: int, destination: ir.Value) -> ir.Value:
        """The tensor as it lies in memory, computed into its destination."""
        step = self.nest.steps[index]

        def body(elements: list[ir.Value]) -> ir.Value:
            number = self.numbers[index] if index in self.numbers else Num(elements[0], step.dtype)
            return (number.to("ui8") if step.dtype == "i1" else number).ssa

        operands = [index] if index in self.tensors else []
        return self._generic(operands, destination, step.loops, (), body)


def _projection(space: Sequence[int], loops: Sequence[int]) -> ir.Attribute:
    """The map from the iteration space to a tensor whose dimensions follow ``loops``."""
    results = [ir.AffineExpr.get_dim(space.index(loop)) for loop in loops]
    return ir.AffineMapAttr.get(ir.AffineMap.get(len(space), 0, results))
