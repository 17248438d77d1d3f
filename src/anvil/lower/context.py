"""The plan under construction: buffers, rows, kernels, and what every graph node has become."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from anvil.dtypes import mlir_name
from anvil.errors import UnsupportedError
from anvil.graph.describe import describe_node, source_line
from anvil.graph.program import GraphProgram
from anvil.kernels.base import Kernel
from anvil.lower.sizes import dense_order, dense_strides, to_size
from anvil.quant import choose
from anvil.runtime.plan import Buffer, Check, Plan, Requirement, Role, Row, Scalar, Size, View
from anvil.targets.base import Target


class Context:
    """What a lowering function works with.

    ``fixed`` gives symbolic sizes the value they are specialised to. ``quant`` and ``attention`` name the mode of
    linear layers and the attention kernel for several queries. Indices in inputs that are ``trusted`` are checked by
    whoever runs the plan.
    """

    def __init__(
        self,
        program: GraphProgram,
        target: Target,
        quant: str,
        attention: str,
        fixed: Mapping[str, int],
        trusted: Collection[str] = (),
    ) -> None:
        self.program = program
        self.target = target
        self.choice = choose(quant, program.stored)
        self.attention = attention
        self.fixed = dict(fixed)
        self.buffers: dict[str, Buffer] = {}
        self.rows: list[Row] = []
        self.kernels: dict[str, Kernel] = {}
        self.weights: dict[str, str] = {}
        self.trusted = frozenset(trusted)
        self.checks: list[Check] = []
        self.checked: set[Hashable] = set()  # what there is a check for already
        self.requirements: list[Requirement] = []
        self._packed: dict[tuple[int, str], str] = {}  # parameter tensor and layout -> weight buffer
        self.escaping: set[Node] = set()  # nodes whose memory a caller receives

    def size(self, value: Any) -> Size:
        """An int, SymInt, or the node of one, as a size."""
        if isinstance(value, Node):
            value = value.meta["val"]
        return to_size(value, self.fixed)

    def shape(self, node: Node, result: int = 0) -> tuple[Size, ...]:
        """Sizes of the tensor that ``node`` computes; of its ``result``-th, if there are several."""
        return tuple(self.size(size) for size in _fake(node, result).shape)

    def dtype(self, node: Node, result: int = 0) -> str:
        """MLIR element type name of the tensor that ``node`` computes."""
        return mlir_name(_fake(node, result).dtype)

    def order(self, node: Node, result: int = 0) -> tuple[int, ...]:
        """Dimensions from outermost to innermost as PyTorch lays the result out; row-major if it has gaps."""
        strides = [self.size(stride) for stride in _fake(node, result).stride()]
        shape = self.shape(node, result)
        return dense_order(shape, strides) or tuple(range(len(shape)))

    def allocate(
        self, node: Node, sizes: Sequence[Size], dtype: str, *, order: Sequence[int] | None = None, temp: bool = False
    ) -> View:
        """New memory for a result of ``node``; the view has ``sizes``, its dimensions lie in ``order`` in memory.

        It is an output buffer where the caller receives it (never with ``temp``), else a temporary.
        """
        order = list(range(len(sizes))) if order is None else list(order)
        role: Role = "output" if node in self.escaping and not temp else "temp"
        name = self.unique(node.name)
        stored = tuple(sizes[dim] for dim in order)
        self.buffers[name] = Buffer(name, role, dtype, stored)
        strides: list[Size] = [0] * len(order)
        for dim, stride in zip(order, dense_strides(stored), strict=True):
            strides[dim] = stride
        return View(name, 0, tuple(sizes), tuple(strides))

    def unique(self, name: str) -> str:
        """``name``, or ``name_2`` and so on, not yet taken by a buffer."""
        base, number = name, 1
        while name in self.buffers:
            number += 1
            name = f"{base}_{number}"
        return name

    def weight(self, node: Node, shape: Sequence[Size], dtype: str, layout: str) -> View:
        """The buffer that holds parameter ``node`` in ``layout``; one per tensor and layout, however often used."""
        key = (id(self.program.params[node.name]), layout)
        if key not in self._packed:
            name = self.unique(node.name if layout == "plain" else f"{node.name}.{layout}")
            self.buffers[name] = Buffer(name, "weight", dtype, tuple(shape), layout)
            self.weights[name] = node.name
            self._packed[key] = name
        name = self._packed[key]
        sizes = self.buffers[name].shape
        return View(name, 0, sizes, dense_strides(sizes))

    def emit(self, kernel: Kernel, args: Sequence[View | Scalar], node: Node) -> None:
        """One more row: ``kernel`` computes ``node``. Raises UnsupportedError where it takes other element types."""
        given = [self.buffers[arg.buffer].dtype if isinstance(arg, View) else arg.dtype for arg in args]
        wrong = [(p, own) for p, own in zip(kernel.params, given, strict=True) if p.dtype != own]
        if wrong:
            said = ", ".join(f"{param.name} is {own}, expected {param.dtype}" for param, own in wrong)
            raise self.unsupported(node, f"kernel={kernel.name} computes in other types: {said}")
        self.kernels.setdefault(kernel.name, kernel)
        self.rows.append(Row(kernel.name, tuple(args), node.name, source_line(node)))

    def unsupported(self, node: Node, why: str) -> UnsupportedError:
        """The error for a node that cannot be lowered, to be raised."""
        return UnsupportedError(f"lowering program {self.program.name!r}: {describe_node(node)}: {why}")

    def plan(self, inputs: Sequence[str], outputs: Sequence[View], values: Mapping[str, View]) -> Plan:
        """Everything so far as a plan."""
        found = {
            symbol.name
            for size in self._all_sizes(outputs)
            if not isinstance(size, int)
            for symbol in size.free_symbols
        }
        return Plan(
            name=self.program.name,
            symbols=tuple(sorted(found)),
            buffers=self.buffers,
            rows=self.rows,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            kernels=self.kernels,
            weights=self.weights,
            values=dict(values),
            checks=tuple(self.checks),
            requirements=tuple(self.requirements),
        )

    def _all_sizes(self, outputs: Sequence[View]) -> list[Any]:
        views = [arg for row in self.rows for arg in row.args if isinstance(arg, View)] + list(outputs)
        sizes = [size for view in views for size in (view.offset, *view.sizes, *view.strides)]
        scalars = [arg.value for row in self.rows for arg in row.args if isinstance(arg, Scalar)]
        shapes = [size for buffer in self.buffers.values() for size in buffer.shape]
        required = [requirement.size for requirement in self.requirements]
        return [size for size in (*sizes, *scalars, *shapes, *required) if not isinstance(size, float)]


def _fake(node: Node, result: int) -> torch.Tensor:
    value = node.meta["val"]
    return value[result] if isinstance(value, (tuple, list)) else value


def op_title(target: Any) -> str:
    """A short name of an op for kernel names: ``add`` of ``aten.add.Tensor``."""
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "op")
    return re.sub(r"\W", "", name.split("::")[-1]).strip("_")
