"""The incremental program under construction: new nodes, their roles, and how to refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from anvil.errors import UnsupportedError
from anvil.frontend.incremental.roles import Axis, Role, plain
from anvil.frontend.index_formulas import Formulas
from anvil.graph.describe import describe_node
from anvil.graph.inference import infer
from anvil.graph.program import GraphProgram
from anvil.graph.symbolic import mode_of, symbol_name

aten = torch.ops.aten
_INHERITED_META = ("stack_trace", "nn_module_stack")


class Rebuild:
    """Copies ``program`` node by node; ``batch`` and ``tokens`` are the names of its symbolic sizes.

    Placeholders come first; after them every node of ``program`` is declared in order.
    """

    def __init__(self, program: GraphProgram, batch: str, tokens: str) -> None:
        self.program = program
        self.mode = mode_of(program)
        self.graph = Graph()
        self.formulas = Formulas()
        self.past: Node | None = None
        self.caches: dict[Node, list[Node]] = {}  # attention call of ``program`` -> its caches, see ``incrementalise``
        self._axis_names = {batch: Axis.BATCH, tokens: Axis.TOKEN}
        self._measured: dict[Axis, tuple[Node, int]] = {}
        self._sizes: dict[Axis, Node] = {}
        self._positions: dict[int, Node] = {}
        self._new: dict[Node, Any] = {}
        self._roles: dict[Node, Role] = {}
        self._origin: Node | None = None

    # -- the program that is read ------------------------------------------------------------------------------------

    def new(self, old: Any) -> Any:
        """The new counterpart of an argument: nodes are replaced, also inside lists."""
        return map_aggregate(old, lambda item: self._new[item] if isinstance(item, Node) else item)

    def role(self, old: Any) -> Role:
        """The role of an operand; numbers and sizes are plain."""
        return self._roles.get(old, plain(0)) if isinstance(old, Node) else plain(0)

    def axis_of_size(self, size: int | torch.SymInt) -> Axis | None:
        """The axis that a size is the length of; None for another expression of several."""
        if isinstance(size, int):
            return Axis.PLAIN
        if {str(factor) for factor in size.node.expr.as_ordered_factors()} == set(self._axis_names):
            return Axis.BOTH
        return self._axis_names.get(symbol_name(size) or "")

    def depends_on_tokens(self, size: torch.SymInt) -> bool:
        """Whether a size changes with the number of tokens."""
        names = {str(symbol) for symbol in size.node.expr.free_symbols}
        return any(self._axis_names.get(name) is Axis.TOKEN for name in names)

    def refuse(self, node: Node, why: str) -> NoReturn:
        raise UnsupportedError(
            f"making {self.program.name!r} incremental: {describe_node(node)}: {why}. Expected operations that treat"
            " each token by itself, and causal attention; without a cache the program still compiles"
        )

    # -- the program that is written ---------------------------------------------------------------------------------

    def placeholder(self, name: str, value: torch.Tensor) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        for dim, size in enumerate(value.shape):
            axis = self.axis_of_size(size)
            if axis in (Axis.BATCH, Axis.TOKEN):
                self._measured.setdefault(axis, (node, dim))
        return node

    def declare(self, old: Node, new: Any, role: Role) -> None:
        """``new`` stands for ``old`` from now on."""
        self._new[old] = new
        self._roles[old] = role

    def emit(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Append a call, with the Python line of the node being rebuilt."""
        node = self.graph.call_function(target, args, kwargs)
        if self._origin is not None:
            node.meta.update({key: self._origin.meta[key] for key in _INHERITED_META if key in self._origin.meta})
        node.meta["val"] = infer(self.mode, target, node.args, node.kwargs)
        return node

    def copy(self, old: Node) -> Node:
        """The same call on the new operands."""
        return self.emit(old.target, *self.new(old.args), **self.new(old.kwargs))

    def at(self, old: Node) -> None:
        """What is emitted next stands for ``old``."""
        self._origin = old

    def size(self, axis: Axis) -> Node:
        """The number of rows or of new tokens."""
        if axis not in self._sizes:
            with self.graph.inserting_after(self._last_placeholder()):
                self._sizes[axis] = self.emit(torch.ops.aten.sym_size.int, *self._measured[axis])
        return self._sizes[axis]

    def positions(self, start: int = 0) -> Node:
        """``past[b] + s + start``: i64 [B, S]."""
        if start not in self._positions:
            steps = self.emit(aten.arange.default, self.size(Axis.TOKEN))
            position = self.emit(aten.add.Tensor, self.emit(aten.unsqueeze.default, self.past, 1), steps)
            self._positions[start] = self.emit(aten.add.Tensor, position, start) if start else position
        return self._positions[start]

    def _last_placeholder(self) -> Node:
        return [node for node in self.graph.nodes if node.op == "placeholder"][-1]
