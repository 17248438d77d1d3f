"""A functional graph from AOTAutograd as a GraphProgram, and what to do with its other arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

import anvil.graph.ops  # noqa: F401  (registers torch.ops.anvil)
from anvil.errors import UnsupportedError
from anvil.graph.describe import describe_node
from anvil.graph.program import GraphProgram
from anvil.graph.symbolic import fake_mode, fake_tensor, propagate, symbolic_size

aten = torch.ops.aten


@dataclass(frozen=True)
class Converted:
    """``program`` computes some results of a graph from some of its arguments.

    ``inputs`` and ``params`` are the positions of those arguments; ``params`` are weights, in the order of
    ``program.params``, which also holds the graph's constants after them. ``results`` makes the full list of results
    from all arguments and the outputs of the program.
    """

    program: GraphProgram
    inputs: tuple[int, ...]
    params: dict[str, int]
    results: Callable[[Sequence[Any], Sequence[torch.Tensor]], list[Any]]


class _Conversion:
    def __init__(self, module: GraphModule, weights: Sequence[int], names: Sequence[str]) -> None:
        self.module, self.weights, self.names = module, set(weights), names
        self.graph, self.mode = Graph(), fake_mode()
        self.copies: dict[Node, Node] = {}
        self.sizes: dict[sympy.Symbol, tuple[Node, int]] = {}
        self.loose: dict[Node, Node] = {}
        self.ranges: dict[str, tuple[int, int | None]] = {}

    def tensor(self, node: Node, name: str) -> None:
        """A placeholder with symbols of our own for the sizes that are not numbers."""
        copy = self.graph.placeholder(name)
        value = node.meta["val"]
        copy.meta["val"] = fake_tensor(self.mode, [self.size(size) for size in value.shape], value.dtype)
        self.copies[node] = copy
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                self.sizes.setdefault(size.node.expr, (copy, dim))

    def size(self, size: int | torch.SymInt) -> int | torch.SymInt:
        if isinstance(size, int):
            return size
        env, expression = size.node.shape_env, size.node.expr
        names: dict[sympy.Symbol, torch.SymInt] = {}
        for symbol in expression.free_symbols:
            name = f"D{symbol.name.lstrip('su')}"
            limits = env.var_to_range[symbol]
            upper = int(limits.upper) if limits.upper.is_Integer else None
            self.ranges[name] = (int(limits.lower), upper)
            names[symbol] = symbolic_size(self.mode, name, hint=int(size.node.shape_env.backed_var_to_val[symbol]))
        ours = expression.xreplace({symbol: value.node.expr for symbol, value in names.items()})
        return self.mode.shape_env.create_symintnode(ours, hint=size.node.hint)

    def run(self) -> Converted:
        self.refuse_higher_order()
        arguments = self.module.graph.find_nodes(op="placeholder")
        tensors = [i for i, node in enumerate(arguments) if isinstance(node.meta["val"], torch.Tensor)]
        inputs = tuple(i for i in tensors if i not in self.weights)
        params = {self.names[i]: i for i in tensors if i in self.weights}
        for position in (*inputs, *params.values()):
            self.tensor(arguments[position], self.names[position])
        constants = self.constants()
        for node in arguments:
            if isinstance(node.meta["val"], torch.SymInt):
                self.copies[node] = self.size_argument(node)
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        computed = self.computed()
        self.graph.output(tuple(self.copies[node] for node in computed))
        self.graph.eliminate_dead_code()
        self.drop_loose_integers()
        module = GraphModule({}, self.graph)
        propagate(module, self.mode)
        names = tuple(self.names[i] for i in inputs)
        paths = {name: name for name in (*params, *constants)}
        program = GraphProgram("torch_compile", module, names, dict(constants), paths, self.ranges)
        return Converted(program, inputs, params, _assemble(self.module, arguments, computed))

    def refuse_higher_order(self) -> None:
        """Control flow, and operations whose effects are ordered by tokens (checks that raise, printing...)."""
        for node in self.module.graph.nodes:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise UnsupportedError(f"converting a graph of torch.compile: {describe_node(node)}: not supported")

    def constants(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for node in self.module.graph.find_nodes(op="get_attr"):
            value = getattr(self.module, str(node.target))
            copy = self.graph.placeholder(f"constant_{len(found)}")
            copy.meta["val"] = fake_tensor(self.mode, value.shape, value.dtype)
            found[str(copy.target)], self.copies[node] = value, copy
        return found

    def size_argument(self, node: Node) -> Node:
        """The tensor size that an integer argument is; a placeholder for others, which nothing may use."""
        expression = node.meta["val"].node.expr
        if expression in self.sizes:
            return self.graph.call_function(aten.sym_size.int, self.sizes[expression])
        self.loose[node] = self.graph.placeholder(node.name)
        return self.loose[node]

    def drop_loose_integers(self) -> None:
        for node, copy in self.loose.items():
            if copy.users:
                users = ", ".join(describe_node(user) for user in node.users)
                raise UnsupportedError(
                    f"converting a graph of torch.compile: the integer argument {node.name} is the size of no tensor,"
                    f" used by {users}; expected a constant: compile with dynamic=False"
                )
            self.graph.erase_node(copy)

    def computed(self) -> list[Node]:
        """Results that have to be computed: tensors that are no argument, each once."""
        results = self.module.graph.output_node().args[0]
        tensors = [node for node in results if isinstance(node, Node) and isinstance(node.meta["val"], torch.Tensor)]
        return list(dict.fromkeys(node for node in tensors if node.op != "placeholder"))


def _assemble(module: GraphModule, arguments: list[Node], computed: list[Node]) -> Callable[..., list[Any]]:
    """All results: an output of the program, an argument handed through, a size, or a constant."""
    symbols = {
        node.meta["val"].node.expr: i
        for i, node in enumerate(arguments)
        if isinstance(node.meta["val"], torch.SymInt) and node.meta["val"].node.expr.is_Symbol
    }

    def result(item: Any, given: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Any:
        if not isinstance(item, Node):
            return item
        if item in arguments:
            return given[arguments.index(item)]
        if item in computed:
            return outputs[computed.index(item)]
        expression = item.meta["val"].node.expr
        return int(expression.subs({symbol: given[i] for symbol, i in symbols.items()}))

    def results(given: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[Any]:
        return [result(item, given, outputs) for item in module.graph.output_node().args[0]]

    return results


def convert(module: GraphModule, weights: Sequence[int], names: Sequence[str]) -> Converted:
    """``module`` takes and gives flat lists and has no side effects; ``weights`` are positions of its arguments.

    Raises UnsupportedError for control flow and for integer arguments that are no sizes.
    """
    return _Conversion(module, weights, names).run()
