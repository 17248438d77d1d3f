"""Lowering a graph node by node: views stay metadata, named ops become rows, groups of generic ops one row each."""

from __future__ import annotations

from operator import getitem
from typing import Any

import sympy
import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.lower import named
from anvil.lower.checks import emit_checks
from anvil.lower.context import Context
from anvil.lower.effects import ordering
from anvil.lower.generic.emission import emit_copy, emit_group
from anvil.lower.generic.groups import Graph, partition, remap_dims
from anvil.lower.generic.ops import table
from anvil.lower.sizes import dense_strides, is_dense, product, reshaped_strides, same, simplify
from anvil.lower.values import Tensor
from anvil.lower.views import REMAPS, WINDOWS, remapped
from anvil.lower.virtual import VIRTUAL, full
from anvil.runtime.plan import Buffer, Plan, Size, View

_NOTHING = frozenset(
    {torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten.sym_constrain_range_for_size.default}
)


class Lowering(Context):
    """Turns the nodes of one program into rows. ``results`` has what each node has become."""

    def __init__(self, program: GraphProgram, *choices: Any) -> None:
        super().__init__(program, *choices)
        self.nodes = list(program.module.graph.nodes)
        self.results: dict[Node, Any] = {}
        self.rounded: dict[tuple[Node, str], list[View]] = {}  # inputs of linear layers in modes that round them
        self._filled: dict[tuple[Size, tuple[Size, ...], str], View] = {}
        self.table = named.table()
        self.escaping = self._escaping()
        self.graph = Graph(self, table(), ordering(self.nodes), self._virtual, self._is_named)
        self.groups = partition(self.graph, self.nodes)

    def run(self) -> Plan:
        """Lower every node and gather the plan."""
        for node in self.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        ends = {group.nodes[-1] for group in self.groups.values()}
        for node in self.nodes:
            if node in ends or self._is_named(node):
                self.result(node)
        outputs = [self._output(node) for node in self._returned()]
        tensors = {n.name: r.view for n, r in self.results.items() if isinstance(r, Tensor) and r.generator is None}
        return self.plan(self.program.inputs, outputs, tensors)

    def result(self, node: Node) -> Any:
        """What ``node`` has become; lowers it, and what it needs, if that has not happened yet."""
        if node not in self.results:
            for earlier in self.graph.before.get(node, ()):
                self.result(earlier)
            if node in self.groups:
                self.results |= emit_group(self, self.groups[node])
                for member in self.groups[node].nodes:
                    emit_checks(self, member)
            else:
                self.results[node] = self._lower(node)
                emit_checks(self, node)
        return self.results[node]

    def tensor(self, node: Node) -> Tensor:
        """The tensor ``node`` computes; it may not be in memory."""
        return self.result(node)

    def view(self, node: Node) -> View:
        """Where in memory the tensor that ``node`` computes lies."""
        tensor = self.tensor(node)
        if tensor.generator is not None:
            stored = self.stored(node, tensor)
            self.results[node] = Tensor(stored, tensor.dtype)
        return self.results[node].view

    def stored(self, node: Node, tensor: Tensor, *, temp: bool = False) -> View:
        """A dense, row-major copy of ``tensor``, in memory as :meth:`allocate` gives it for ``node``."""
        target = self.allocate(node, tensor.shape, tensor.dtype, temp=temp)
        emit_copy(self, node, tensor, target)
        return target

    def with_inner_unit(self, node: Node) -> View:
        """Where the tensor ``node`` computes lies, copied if its innermost stride is not 1."""
        view = self.view(node)
        if not view.sizes or same(view.strides[-1], 1):
            return view
        return self.stored(node, self.tensor(node), temp=True)

    def rows_of(self, node: Node) -> View:
        """The tensor ``node`` computes as [rows, last dimension] with innermost stride 1; copied if need be."""
        shape = self.shape(node)
        matrix = (product(shape[:-1]), shape[-1])
        return self._dense_as(node, self.with_inner_unit(node), matrix)

    def vector_of(self, node: Node) -> View:
        """The tensor ``node`` computes as a vector of stride 1; copied if need be."""
        return self._dense_as(node, self.with_inner_unit(node), (product(self.shape(node)),))

    def _dense_as(self, node: Node, view: View, shape: tuple[Size, ...]) -> View:
        strides = reshaped_strides(view.sizes, view.strides, shape)
        if strides is not None and same(strides[-1], 1):
            return View(view.buffer, view.offset, shape, strides)
        copied = self.stored(node, Tensor(view, self.dtype(node)), temp=True)
        return View(copied.buffer, 0, shape, dense_strides(shape))

    def broadcast_to(self, view: View, shape: tuple[Size, ...]) -> View:
        """``view`` repeated along dimensions of size 1."""
        return remapped(view, list(range(len(shape))), shape)

    def filled(self, node: Node, value: Size, shape: tuple[Size, ...], dtype: str) -> View:
        """A tensor of equal numbers in memory, for ``node``; one for all rows that ask for the same."""
        key = (value, shape, dtype)
        if key not in self._filled:
            target = self.allocate(node, shape, dtype, temp=True)
            emit_copy(self, node, full(value, shape, dtype), target)
            self._filled[key] = target
        return self._filled[key]

    def _lower(self, node: Node) -> Any:
        if isinstance(node.meta.get("val"), (torch.SymInt, int)):
            return self.size(node)
        if node.op == "placeholder" and node.name in self.program.params:
            return Tensor(self.weight(node, self.shape(node), self.dtype(node), "plain"), self.dtype(node))
        if node.op != "call_function":
            raise self.unsupported(node, f"{node.op} nodes cannot be lowered")
        if (virtual := self._virtual(node)) is not None:
            return virtual
        if node.target is getitem:
            return self.result(node.args[0])[node.args[1]]
        if node.target in REMAPS or node.target in WINDOWS:
            return self._look(node)
        if node.target in _NOTHING:
            return None
        if self._is_named(node):
            lowered = self.table[node.target](self, node)
            return Tensor(lowered, self.dtype(node)) if isinstance(lowered, View) else lowered
        raise self.unsupported(node, "there is no lowering for this op; fuse it away, or add it to anvil.lower")

    def _is_named(self, node: Node) -> bool:
        """Whether this call has a lowering of its own."""
        if node.op != "call_function" or node.target not in self.table:
            return False
        applies = named.conditions().get(node.target)
        return applies is None or applies(self, node)

    def _look(self, node: Node) -> Tensor:
        """A view op: other sizes and strides where that is possible, else a copy."""
        source = node.args[0]
        tensor, shape = self.tensor(source), self.shape(node)
        seen = self._seen(node, tensor, shape)
        if seen is not None:
            return tensor.seen_as(seen)
        dense = Tensor(self.stored(node, tensor), tensor.dtype)
        return dense.seen_as(self._seen(node, dense, shape))  # type: ignore[arg-type]

    def _seen(self, node: Node, tensor: Tensor, shape: tuple[Size, ...]) -> View | None:
        if node.target in REMAPS:
            return remapped(tensor.view, remap_dims(self.graph, node, tensor.shape), shape)
        arguments = [self._argument(value) for value in node.args[1:]]
        return WINDOWS[node.target](tensor.view, shape, *arguments)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        return self.size(value) if isinstance(value, (Node, torch.SymInt)) else value

    def _virtual(self, node: Node) -> Tensor | None:
        """A tensor that is computed from positions alone, or a view of one."""
        if node.op != "call_function":
            return None
        if node.target in VIRTUAL:
            return VIRTUAL[node.target](self, node)
        if node.target not in REMAPS and node.target not in WINDOWS:
            return None
        source = node.args[0]
        if not isinstance(source, Node) or (tensor := self._virtual(source)) is None:
            return None
        seen = self._seen(node, tensor, self.shape(node))
        return None if seen is None else tensor.seen_as(seen)

    def _placeholder(self, node: Node) -> None:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return
        shape, dtype = self.shape(node), self.dtype(node)
        cache = next((spec for spec in self.program.caches if spec.placeholder == node.name), None)
        if cache is not None:
            # A head's slots lie together: a decoding step reads them in order, several times as fast as with gaps.
            self.buffers[node.name] = Buffer(node.name, "cache", dtype, shape)
            self.results[node] = Tensor(View(node.name, 0, shape, dense_strides(shape)), dtype)
        elif node.name in self.program.inputs:
            self.results[node] = Tensor(self._input(node, shape, dtype), dtype)

    def _input(self, node: Node, shape: tuple[Size, ...], dtype: str) -> View:
        """An input as captured: one with gaps or in another order is a window on the span of memory it covers."""
        strides = tuple(self.size(stride) for stride in node.meta["val"].stride())
        view = View(node.name, 0, shape, strides)
        if is_dense(view):
            self.buffers[node.name] = Buffer(node.name, "input", dtype, shape)
            return View(node.name, 0, shape, dense_strides(shape))
        span = sympy.Integer(1) + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self.buffers[node.name] = Buffer(node.name, "input", dtype, (simplify(sympy.Max(span, 0)),))
        return view

    def _returned(self) -> list[Node]:
        (output,) = (node for node in self.nodes if node.op == "output")
        returned = [value for value in output.args[0] if isinstance(value, Node)]
        numbers = [node for node in returned if not isinstance(node.meta["val"], torch.Tensor)]
        if numbers:
            raise self.unsupported(numbers[0], "a program can return tensors only, not numbers")
        return returned

    def _escaping(self) -> set[Node]:
        """Nodes whose memory the caller receives: returned ones, and those they are only views of."""
        found: set[Node] = set()
        for node in self._returned():
            while node not in found:
                found.add(node)
                looks = node.op == "call_function" and node.target in (*REMAPS, *WINDOWS, getitem)
                node = node.args[0] if looks else node
        return found

    def _output(self, node: Node) -> View:
        """A returned tensor, in memory without overlap."""
        view = self.view(node)
        overlaps = any(
            same(stride, 0) and not same(size, 1) for size, stride in zip(view.sizes, view.strides, strict=True)
        )
        return self.stored(node, Tensor(view, self.dtype(node))) if overlaps else view
