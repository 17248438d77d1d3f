"""One node per symbolic size: B, S, ... are read once, from the first input that has them; known sizes are numbers."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, emit, shape_of
from anvil.graph.symbolic import symbol_name

aten = torch.ops.aten


def _first_call(program: GraphProgram) -> Node:
    return next(node for node in program.module.graph.nodes if node.op != "placeholder")


def _canonical_sizes(program: GraphProgram) -> None:
    origin: dict[str, tuple[Node, int]] = {}
    for placeholder in program.module.graph.find_nodes(op="placeholder"):
        for dim, size in enumerate(shape_of(placeholder)):
            if name := symbol_name(size):
                origin.setdefault(name, (placeholder, dim))
    first = _first_call(program)
    canonical: dict[str, Node] = {}
    for node in list(program.module.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, (int, float, torch.SymInt)):
            continue
        if not isinstance(value, torch.SymInt):
            _use_number(node, value)
        elif (name := symbol_name(value)) in origin:
            if name not in canonical:
                canonical[name] = emit(program, first, aten.sym_size.int, *origin[name])
                canonical[name].meta.pop("stack_trace", None)
            node.replace_all_uses_with(canonical[name])


def _use_number(node: Node, value: int | float) -> None:
    def number(item: object) -> object:
        return value if item is node else item

    for user in list(node.users):
        user.args = torch.fx.node.map_aggregate(user.args, number)
        user.kwargs = torch.fx.node.map_aggregate(user.kwargs, number)


CANONICAL_SIZES = GraphPass("canonical_sizes", _canonical_sizes)
