"""Compute equal things once, and drop parameters that nothing reads."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, substitute


def _key(item: Any) -> Any:
    """Hashable, equal for equal calls. Types are kept apart: 1, 1.0 and True are different arguments."""
    if isinstance(item, Node):
        return ("node", item.name)
    if isinstance(item, (list, tuple)):
        return ("list", *map(_key, item))
    if isinstance(item, dict):
        return tuple((name, _key(value)) for name, value in sorted(item.items()))
    return (type(item), repr(item))


def _mutates(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _shareable(node: Node) -> bool:
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return node.op == "call_function" and not random and not _mutates(node)


def _share(program: GraphProgram) -> None:
    first: dict[Any, Node] = {}
    changing = {item for node in program.module.graph.nodes if _mutates(node) for item in node.all_input_nodes}
    for node in list(program.module.graph.nodes):
        if _shareable(node) and changing.isdisjoint(node.all_input_nodes):
            original = first.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
            if original is not node:
                substitute(node, original)


def _drop_unused(program: GraphProgram) -> None:
    program.module.graph.eliminate_dead_code()
    for placeholder in program.module.graph.find_nodes(op="placeholder"):
        name = placeholder.target
        if name in program.params and not placeholder.users:
            program.module.graph.erase_node(placeholder)
            del program.params[name]
            program.notes.append(f"drop_unused: parameter {program.paths[name]} is never read")
    program.paths = {name: path for name, path in program.paths.items() if name in program.params}


SHARE = GraphPass("share", _share)
DROP_UNUSED = GraphPass("drop_unused", _drop_unused)
