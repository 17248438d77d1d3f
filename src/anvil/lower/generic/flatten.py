"""From linalg on tensors to a graph of scalar operations, each knowing which loops it varies over.

Tensors that only pass between structured ops disappear: an element of such a tensor is the scalar that computed it.
What is left are loads from arguments, elementwise operations, reductions, and the elements stored in the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anvil import mlir
from anvil.mlir import ir


@dataclass(frozen=True)
class Fold:
    """One turn of a reduction: ``body`` computes ``result``, the new total, from ``formals``: the operands in order,
    then the old total. Nothing in ``body`` is independent of the total."""

    formals: tuple[ir.Value, ...]
    body: tuple[ir.Operation, ...]
    result: ir.Value


@dataclass(frozen=True, eq=False)
class Element:
    """One scalar: what is computed for one point of ``loops``.

    ``load``: argument ``position``. ``gather``: the same, at the indices that ``operands`` give. ``argument``: a scalar
    argument. ``index``: the number of the turn of the one loop. ``operation``: ``op`` on ``operands``. ``reduce``:
    ``fold`` takes the operands into a total, which starts as ``initial``, over ``over``.
    """

    kind: Literal["load", "gather", "argument", "index", "operation", "reduce"]
    loops: frozenset[int]
    position: int = 0
    op: ir.Operation | None = None
    operands: tuple[Element, ...] = ()
    fold: Fold | None = None
    initial: Element | None = None
    over: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Flat:
    """``stores[i]`` is the element of result i. ``module`` owns the operations that elements refer to."""

    stores: tuple[Element, ...]
    module: mlir.Module


def flatten(module: mlir.Module, argument_loops: Sequence[Sequence[int] | int | None]) -> Flat:
    """The scalar graph of the module's one function; ``argument_loops[i]`` are the loops of tensor argument i's
    dimensions, the loop that argument i is the size of, or None for another scalar."""
    (function,) = module.body.operations
    reader = _Reader()
    block = function.regions[0].blocks[0]
    for position, (argument, loops) in enumerate(zip(block.arguments, argument_loops, strict=True)):
        reader.bind_argument(argument, position, loops)
    for op in block.operations:
        reader.read(op.operation)
    return Flat(tuple(reader.stores), module)


class _Reader:
    def __init__(self) -> None:
        self.loops: dict[ir.Value, tuple[int, ...]] = {}  # of a tensor's dimensions
        self.elements: dict[ir.Value, Element] = {}  # of a tensor, or a scalar itself
        self.sizes: dict[ir.Value, int] = {}  # an index value that is the size of a loop
        self.integers: dict[ir.Value, int] = {}
        self.stores: list[Element] = []

    def bind_argument(self, argument: ir.Value, position: int, loops: Sequence[int] | int | None) -> None:
        if isinstance(loops, int):
            self.sizes[argument] = loops
        elif loops is None:
            self.elements[argument] = Element("argument", frozenset(), position=position)
        else:
            self.loops[argument] = tuple(loops)
            self.elements[argument] = Element("load", frozenset(loops), position=position)

    def read(self, op: ir.Operation) -> None:
        handler = getattr(self, "_read_" + op.name.replace(".", "_"), None)
        if handler is None:
            raise ValueError(f"flattening linalg: op {op.name} is none of those that regions are built from:\n{op}")
        handler(op)

    def _read_arith_constant(self, op: ir.Operation) -> None:
        value = op.attributes["value"]
        if isinstance(op.results[0].type, ir.IndexType):
            self.integers[op.results[0]] = ir.IntegerAttr(value).value
        self.elements[op.results[0]] = Element("operation", frozenset(), op=op)

    def _read_tensor_dim(self, op: ir.Operation) -> None:
        source, dim = op.operands
        self.sizes[op.results[0]] = self.loops[source][self.integers[dim]]

    def _read_tensor_empty(self, op: ir.Operation) -> None:
        self.loops[op.results[0]] = tuple(self.sizes[size] for size in op.operands)

    def _read_linalg_fill(self, op: ir.Operation) -> None:
        value, out = op.operands
        self.loops[op.results[0]] = self.loops[out]
        self.elements[op.results[0]] = self.elements[value]

    def _read_linalg_reduce(self, op: ir.Operation) -> None:
        source, initial = op.operands
        over = [int(dim) for dim in op.attributes["dimensions"]]
        self._reduction(op, [source], initial, list(self.loops[source]), over)

    def _read_linalg_generic(self, op: ir.Operation) -> None:
        space = self._iteration_space(op)
        kinds = ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
        inputs = list(op.operands)[: len(op.operands) - len(op.results)]
        outs = list(op.operands)[len(inputs) :]
        if any(kinds):
            self._reduction(op, inputs, outs[0], space, [dim for dim, reduces in enumerate(kinds) if reduces])
            return
        for result, out in zip(op.results, outs, strict=True):
            self.loops[result] = self.loops[out]
        yielded = self._body(op, [self.elements.get(value) for value in op.operands], space)
        for result, element in zip(op.results, yielded, strict=True):
            self.elements[result] = element

    def _reduction(
        self, op: ir.Operation, inputs: list[ir.Value], initial: ir.Value, space: list[int], over: list[int]
    ) -> None:
        """Fusion may have put the producers of the operands into the body: what does not depend on the total is
        computed before the fold, and is an operand of it."""
        block = op.regions[0].blocks[0]
        *arguments, total = block.arguments
        known = dict(zip(arguments, (self.elements[value] for value in inputs), strict=True))
        depends, body, result = {total}, list[ir.Operation](), total
        for inner in block.operations:
            if inner.operation.name == "linalg.yield":
                (result,) = inner.operands
            elif any(value in depends for value in inner.operands):
                depends.update(inner.results)
                body.append(inner.operation)
            else:
                known[inner.results[0]] = self._element(inner.operation, known, space)
        needed = dict.fromkeys(value for inner in body for value in inner.operands if value not in depends)
        operands = tuple(known.get(value) or self.elements[value] for value in needed)
        self.loops[op.results[0]] = self.loops[initial]
        self.elements[op.results[0]] = Element(
            "reduce",
            frozenset(self.loops[initial]),
            operands=operands,
            fold=Fold((*needed, total), tuple(body), result),
            initial=self.elements[initial],
            over=frozenset(space[dim] for dim in over),
        )

    def _iteration_space(self, op: ir.Operation) -> list[int]:
        """The loop behind each dimension of the iteration space: tensors' maps are projections of it."""
        maps = [ir.AffineMapAttr(item).value for item in op.attributes["indexing_maps"]]
        space: dict[int, int] = {}
        for value, mapping in zip(op.operands, maps, strict=True):
            for loop, result in zip(self.loops[value], mapping.results, strict=True):
                space[result.position] = loop
        return [space[position] for position in range(maps[0].n_dims)]

    def _body(self, op: ir.Operation, arguments: list[Element | None], space: list[int]) -> list[Element]:
        block = op.regions[0].blocks[0]
        known = {ssa: element for ssa, element in zip(block.arguments, arguments, strict=True) if element is not None}
        for inner in block.operations:
            if inner.operation.name == "linalg.yield":
                return [known.get(value) or self.elements[value] for value in inner.operands]
            known[inner.results[0]] = self._element(inner.operation, known, space)
        raise ValueError(f"flattening linalg: body without linalg.yield:\n{op}")

    def _element(self, op: ir.Operation, known: Mapping[ir.Value, Element], space: Sequence[int]) -> Element:
        """The result of one operation of a body."""
        if op.name == "linalg.index":
            return Element("index", frozenset([space[ir.IntegerAttr(op.attributes["dim"]).value]]))
        if op.name == "tensor.extract":
            return self._gather(op, known)
        operands = tuple(known.get(value) or self.elements[value] for value in op.operands)
        loops = frozenset().union(*(operand.loops for operand in operands))
        return Element("operation", loops, op=op, operands=operands)

    def _gather(self, op: ir.Operation, known: Mapping[ir.Value, Element]) -> Element:
        source, *indices = op.operands
        operands = tuple(known.get(value) or self.elements[value] for value in indices)
        loops = frozenset().union(*(operand.loops for operand in operands))
        return Element("gather", loops, position=self.elements[source].position, operands=operands)

    def _read_func_return(self, op: ir.Operation) -> None:
        self.stores = [self.elements[value] for value in op.operands]


def in_order(roots: Sequence[Element], known: Collection[Element] = ()) -> Iterator[Element]:
    """Every element that ``roots`` are computed from, operands first, each once; not beyond what is ``known``."""
    seen: set[Element] = set(known)
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        element, ready = stack.pop()
        if ready:
            yield element
            continue
        if element in seen:
            continue
        seen.add(element)
        stack.append((element, True))
        before = (*element.operands, *((element.initial,) if element.initial else ()))
        stack.extend((operand, False) for operand in reversed(before))
