"""Nodes that change memory in place, and what must run before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from anvil.lower.views import REMAPS, WINDOWS


def ordering(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """For nodes that touch memory which some node changes: those that must have run before."""
    before: dict[Node, list[Node]] = {}
    writer: dict[Node, Node] = {}
    readers: dict[Node, list[Node]] = {}
    changed = {_root(argument) for node in nodes for argument in _changes(node)}
    for node in nodes:
        roots = {root for source in node.all_input_nodes if (root := _root(source)) in changed}
        changes = {_root(argument) for argument in _changes(node)}
        for root in roots:
            needed = [writer[root]] if root in writer else []
            needed += readers.get(root, []) if root in changes else []
            before.setdefault(node, []).extend(n for n in needed if n is not node)
            readers.setdefault(root, []).append(node)
        for root in changes:
            writer[root], readers[root] = node, []
    return before


def _changes(node: Node) -> list[Node]:
    """The arguments that an op writes to."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or not schema.is_mutable:
        return []
    pairs = zip(schema.arguments, node.args, strict=False)
    return [value for parameter, value in pairs if parameter.alias_info and parameter.alias_info.is_write]


def _root(node: Any) -> Node:
    """What a chain of views is a view of."""
    while node.op == "call_function" and node.target in (*REMAPS, *WINDOWS):
        node = node.args[0]
    return node
