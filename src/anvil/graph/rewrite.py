"""Tools for passes: look at nodes by schema name, emit nodes with metadata, run a pass on a copy of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

import anvil.graph.cache_ops  # noqa: F401  (registers torch.ops.anvil, with anvil.graph.ops)
from anvil.graph.inference import infer
from anvil.graph.program import GraphProgram
from anvil.graph.symbolic import mode_of

INT_MAX = 2**63 - 1  # what ATen writes for "to the end"
INHERITED_META = ("stack_trace", "nn_module_stack")


@dataclass(frozen=True)
class GraphPass:
    """A named edit of a graph. Calling it leaves the program it is given alone and returns the edited one.

    ``edit`` changes ``program.module.graph`` in place and may append to ``program.notes``.
    """

    name: str
    edit: Callable[[GraphProgram], None]

    def __call__(self, program: GraphProgram) -> GraphProgram:
        result = fork(program, self.name)
        self.edit(result)
        finish(result)
        return result


def fork(program: GraphProgram, stage: str) -> GraphProgram:
    """A copy whose graph can be edited; tensors and fake metadata are shared."""
    graph = Graph()
    output = graph.graph_copy(program.module.graph, {})
    graph.output(output)
    old_output = program.module.graph.output_node()
    graph.output_node().meta = dict(old_output.meta)
    return replace(
        program, module=_LazyGraphModule({}, graph), params=dict(program.params), notes=list(program.notes), stage=stage
    )


def finish(program: GraphProgram) -> None:
    """Drop calls without users, check the graph, make it runnable."""
    program.module.graph.eliminate_dead_code()
    program.module.graph.lint()
    program.module.recompile()


def is_call(value: object, *targets: object) -> TypeGuard[Node]:
    """Whether ``value`` is a node that calls one of ``targets``."""
    return isinstance(value, Node) and value.op == "call_function" and value.target in targets


def calls(graph: Graph, *targets: object) -> Iterator[Node]:
    """Nodes calling one of ``targets``, in graph order; the graph may be edited meanwhile."""
    yield from [node for node in graph.nodes if is_call(node, *targets)]


def argument(node: Node, name: str) -> Any:
    """The argument called ``name`` in the operator's schema: given by position, by keyword, or its default."""
    for position, parameter in enumerate(node.target._schema.arguments):
        if parameter.name == name:
            if not parameter.kwarg_only and position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, parameter.default_value)
    raise KeyError(f"{node.target} has no argument {name!r}")


def shape_of(node: Node) -> tuple[int | torch.SymInt, ...]:
    return tuple(node.meta["val"].shape)


def same_size(left: Any, right: Any) -> bool:
    """Whether two sizes are equal for every value of the symbols, decided without adding a guard."""
    expressions = [size.node.expr if isinstance(size, torch.SymInt) else size for size in (left, right)]
    return bool(expressions[0] == expressions[1])


def are_float32(*nodes: Node) -> bool:
    """Whether all are float32, the type of the named kernels; others keep their own operations and roundings."""
    return all(node.meta["val"].dtype == torch.float32 for node in nodes)


def same_shape(left: Any, right: Any) -> bool:
    """``same_size`` for every dimension of two shapes."""
    return len(left) == len(right) and all(map(same_size, left, right))


def respell(node: Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node | None:
    """Insert a call that means the same as ``node`` before it; None if that is ``node`` already.

    The new node takes over all metadata, so this is also the cheap way to emit.
    """
    if node.target is target and _identical((node.args, node.kwargs), (args, kwargs)):
        return None
    with node.graph.inserting_before(node):
        result = node.graph.call_function(target, args, kwargs)
    result.meta.update(node.meta)
    return result


def _identical(left: Any, right: Any) -> bool:
    """Equal arguments; 1, 1.0 and True are different, a list and a tuple are not."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_identical, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_identical(left[key], right[key]) for key in left)
    return left is right or (type(left) is type(right) and not isinstance(left, Node) and bool(left == right))


def emit(program: GraphProgram, before: Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Insert ``target(*args, **kwargs)`` before a node, with metadata and the Python line of that node."""
    with program.module.graph.inserting_before(before):
        node = program.module.graph.call_function(target, args, kwargs)
    node.meta.update({key: before.meta[key] for key in INHERITED_META if key in before.meta})
    node.meta["val"] = infer(mode_of(program), target, node.args, node.kwargs)
    return node


def sizes_of(program: GraphProgram, before: Node, x: Node) -> list[Node | int]:
    """The sizes of ``x`` as arguments of another call: numbers, or nodes that read them."""
    return [
        size if isinstance(size, int) else emit(program, before, torch.ops.aten.sym_size.int, x, dim)
        for dim, size in enumerate(shape_of(x))
    ]


Rule = Callable[[GraphProgram, Node], Node | None]


def by_target(rules: Mapping[object, Rule]) -> Callable[[GraphProgram], None]:
    """An edit that offers every call to the rule of its target; the node a rule returns replaces the call."""

    def edit(program: GraphProgram) -> None:
        for node in calls(program.module.graph, *rules):
            replacement = rules[node.target](program, node)
            if replacement is not None:
                substitute(node, replacement)

    return edit


def substitute(node: Node, replacement: Node) -> None:
    """Let every user of ``node`` use ``replacement``, and drop ``node``."""
    node.replace_all_uses_with(replacement)
    node.graph.erase_node(node)
