"""Drop calls that give back their operand: copies, casts to the same type, full slices, times one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import INT_MAX, GraphPass, argument, by_target, is_call, same_shape, shape_of

aten = torch.ops.aten
Rule = Callable[[GraphProgram, Node], Node | None]


def _operand(program: GraphProgram, node: Node) -> Node:
    return node.args[0]


def _same_metadata(node: Node) -> bool:
    operand, result = node.args[0].meta["val"], node.meta["val"]
    return operand.dtype == result.dtype and same_shape(operand.shape, result.shape)


def _if_same_metadata(program: GraphProgram, node: Node) -> Node | None:
    return node.args[0] if _same_metadata(node) else None


def _dropout(program: GraphProgram, node: Node) -> Node | None:
    return node.args[0] if not argument(node, "train") or argument(node, "p") == 0 else None


def _slice(program: GraphProgram, node: Node) -> Node | None:
    source, start, end, step = (argument(node, name) for name in ("self", "start", "end", "step"))
    whole = (
        start in (0, None) and step == 1 and (end in (None, INT_MAX) or same_shape(shape_of(node), shape_of(source)))
    )
    return source if whole else None


def _transpose(program: GraphProgram, node: Node) -> Node | None:
    """Of a dimension with itself, or the second of two that cancel."""
    source, *dims = node.args
    if dims[0] == dims[1]:
        return source
    return source.args[0] if is_call(source, aten.transpose.int) and list(source.args[1:]) == dims else None


def _squeeze(program: GraphProgram, node: Node) -> Node | None:
    """Of the dimension that was inserted just before."""
    source, dims = node.args
    return source.args[0] if is_call(source, aten.unsqueeze.default) and list(dims) == [source.args[1]] else None


def _permute(program: GraphProgram, node: Node) -> Node | None:
    return node.args[0] if list(node.args[1]) == list(range(len(node.args[1]))) else None


def _times_one(program: GraphProgram, node: Node) -> Node | None:
    one = node.args[1]
    return node.args[0] if isinstance(one, (int, float)) and one == 1 and _same_metadata(node) else None


def _plus_zero(program: GraphProgram, node: Node) -> Node | None:
    """Integers only: adding 0 to the float -0.0 gives +0.0."""
    zero, dtype = node.args[1], node.meta["val"].dtype
    exact = not dtype.is_floating_point and not dtype.is_complex
    return node.args[0] if isinstance(zero, (int, float)) and zero == 0 and exact and _same_metadata(node) else None


def _where_layout_is_not_seen(rule: Rule) -> Rule:
    """``rule``, but for a copy that lies otherwise than its operand in a program that looks at memory itself."""

    def guarded(program: GraphProgram, node: Node) -> Node | None:
        found = rule(program, node)
        if found is None or _same_layout(found, node):
            return found
        windows = program.module.graph.find_nodes(op="call_function", target=aten.as_strided.default)
        return None if windows else found

    return guarded


def _same_layout(one: Node, other: Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return same_shape(a.stride(), b.stride()) and same_shape((a.storage_offset(),), (b.storage_offset(),))


_RULES: dict[Any, Rule] = {
    aten.alias.default: _operand,
    aten.clone.default: _operand,
    aten.detach.default: _operand,
    aten.detach_.default: _operand,
    aten.contiguous.default: _operand,
    aten.lift_fresh_copy.default: _operand,
    aten._to_copy.default: _if_same_metadata,
    aten.reshape.default: _if_same_metadata,
    aten.expand.default: _if_same_metadata,
    aten.dropout.default: _dropout,
    aten.slice.Tensor: _slice,
    aten.transpose.int: _transpose,
    aten.squeeze.dims: _squeeze,
    aten.permute.default: _permute,
    aten.mul.Tensor: _times_one,
    aten.div.Tensor: _times_one,
    aten.add.Tensor: _plus_zero,
    aten.sub.Tensor: _plus_zero,
}

DROP_NOOPS = GraphPass(
    "drop_noops", by_target({target: _where_layout_is_not_seen(rule) for target, rule in _RULES.items()})
)
