"""Which nodes of a graph share a kernel: maximal sets that fit one iteration space and can run as one step.

Nodes are taken in graph order. A node joins the groups of its operands where their regions still fit together and
no value would leave the joint group and come back into it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from anvil.lower.context import Context
from anvil.lower.generic.call import Build, Call, bind
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Misfit, Operand, Value
from anvil.lower.sizes import dense_strides
from anvil.lower.values import Tensor
from anvil.lower.views import REMAPS
from anvil.runtime.plan import Size, View


@dataclass(eq=False)
class Group:
    """Nodes in graph order, and the region they make with stand-ins for what lies outside."""

    nodes: list[Node]
    region: Region
    values: dict[Node, Any]


@dataclass(frozen=True)
class Graph:
    """What grouping needs to know of a graph.

    ``table`` has the ops that may be grouped, ``before`` the nodes that a node must come after although it does not
    use their result. ``virtual`` gives the tensors that are never in memory, ``named`` tells the calls that have a
    lowering of their own.
    """

    context: Context
    table: Mapping[Any, Build]
    before: Mapping[Node, list[Node]]
    virtual: Callable[[Node], Tensor | None]
    named: Callable[[Node], bool]

    def inputs(self, node: Node) -> list[Node]:
        return [*node.all_input_nodes, *self.before.get(node, ())]


def build_node(graph: Graph, region: Region, node: Node, operand: Callable[[Node], Operand]) -> Any:
    """Add ``node`` to ``region``; ``operand`` gives its tensor arguments. Raises Misfit."""
    context = graph.context

    def resolve(value: Any) -> Any:
        if isinstance(value, Node) and isinstance(value.meta["val"], torch.Tensor):
            return operand(value)
        return context.size(value) if isinstance(value, (Node, torch.SymInt)) else value

    call = Call(node, bind(node, resolve), context.shape(node), context.dtype(node))
    return graph.table[node.target](region, call)


def resolve_inside(graph: Graph, values: Mapping[Node, Any], node: Node) -> Value | None:
    """``node`` as a value of a group, if it is one or only permutes, broadcasts or picks one; else None."""
    if node in values:
        return values[node]
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    if node.target is getitem and node.args[0] in values:
        return values[node.args[0]][node.args[1]]
    if node.target not in REMAPS:
        return None
    inner = resolve_inside(graph, values, node.args[0])
    return None if inner is None else inner.remap(remap_dims(graph, node, inner.shape), graph.context.shape(node))


def remap_dims(graph: Graph, node: Node, shape: tuple[Size, ...]) -> list[int | None]:
    """Which old dimension each dimension of a permuting or broadcasting node was."""
    arguments = [[graph.context.size(i) for i in a] if isinstance(a, (list, tuple)) else a for a in node.args[1:]]
    return REMAPS[node.target](shape, *arguments)


def group_key(graph: Graph, group: Group) -> Hashable:
    """Equal for groups whose nodes call the same ops with the same constants on operands of the same types."""
    number = {node: index for index, node in enumerate(group.nodes)}

    def describe(value: Any) -> Hashable:
        if isinstance(value, (list, tuple)):
            return tuple(describe(item) for item in value)
        if not isinstance(value, Node):
            return "size" if isinstance(value, torch.SymInt) else (type(value), str(value))
        if value in number:
            return number[value]
        if not isinstance(value.meta["val"], torch.Tensor):
            return "size"
        if graph.virtual(value) is not None or resolve_inside(graph, group.values, value) is not None:
            return call(value)
        return graph.context.dtype(value)

    def call(node: Node) -> Hashable:
        named = tuple((name, describe(value)) for name, value in sorted(node.kwargs.items()))
        return str(node.target), tuple(describe(value) for value in node.args), named, graph.context.dtype(node)

    return tuple(call(node) for node in group.nodes)


def partition(graph: Graph, nodes: list[Node]) -> dict[Node, Group]:
    """The group of every node whose op is in the table."""
    position = {node: index for index, node in enumerate(nodes)}
    group_of: dict[Node, Group] = {}
    for node in nodes:
        if node.op != "call_function" or node.target not in graph.table:
            continue
        if graph.named(node) or graph.virtual(node) is not None:
            continue
        try:
            home = _home(graph, group_of, position, node)
        except Misfit:
            continue  # it does not even fit alone: there is no lowering for it
        for member in home.nodes:
            group_of[member] = home
    return group_of


def _home(graph: Graph, group_of: dict[Node, Group], position: dict[Node, int], node: Node) -> Group:
    """The largest group that ``node`` can be a member of, as a new object. Raises Misfit if there is none."""
    home = Group([node], Region(), {})
    _rebuild(graph, home)
    neighbours = list(dict.fromkeys(group for source in _sources(graph, node) if (group := group_of.get(source))))
    for group in reversed(neighbours):
        joint = Group(sorted({*home.nodes, *group.nodes}, key=position.__getitem__), Region(), {})
        if _returns_to_itself(graph, group_of, position, joint):
            continue
        try:
            _rebuild(graph, joint)
        except Misfit:
            continue
        home = joint
    return home


def _sources(graph: Graph, node: Node) -> Iterator[Node]:
    """The nodes that the operands of ``node`` are readings of."""
    for source in node.all_input_nodes:
        while source.op == "call_function" and (source.target in REMAPS or source.target is getitem):
            source = source.args[0]  # type: ignore[assignment]
        yield source


def _rebuild(graph: Graph, group: Group) -> None:
    """Build the region of ``group`` from its nodes. Raises Misfit."""
    group.region, group.values = Region(), {}
    for node in group.nodes:
        group.values[node] = build_node(graph, group.region, node, lambda source: _stand_in(graph, group, source))
    group.region.check()


def _stand_in(graph: Graph, group: Group, node: Node) -> Operand:
    inside = resolve_inside(graph, group.values, node)
    if inside is not None:
        return inside
    shape = graph.context.shape(node)
    stored = Tensor(View(node.name, 0, shape, dense_strides(shape)), graph.context.dtype(node))
    return graph.virtual(node) or stored


def _returns_to_itself(graph: Graph, group_of: dict[Node, Group], position: dict[Node, int], joint: Group) -> bool:
    """Whether something outside needs a member of ``joint`` and is needed by another."""
    members = set(joint.nodes)
    first = position[joint.nodes[0]]
    seen: set[Node] = set()
    stack = [source for node in joint.nodes for source in _outside(graph, joint, node)]
    while stack:
        node = stack.pop()
        if node in members:
            return True
        unit = group_of[node].nodes if node in group_of else [node]
        if node in seen or max(position[n] for n in unit) < first:
            continue
        seen.update(unit)
        stack.extend(source for member in unit for source in graph.inputs(member) if source not in unit)
    return False


def _outside(graph: Graph, joint: Group, node: Node) -> Iterator[Node]:
    """What ``node`` needs that is not a member of ``joint`` or a mere reading of one."""
    members = dict.fromkeys(joint.nodes)
    yield from graph.before.get(node, ())
    for source in node.all_input_nodes:
        reading = source
        while reading not in members and reading.op == "call_function" and reading.target in (*REMAPS, getitem):
            reading = reading.args[0]  # type: ignore[assignment]
        if reading not in members:
            yield source
