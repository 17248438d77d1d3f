"""Constant tensors: every creation op becomes ``full``; a constant operand of arithmetic becomes a number."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, Rule, argument, by_target, is_call, respell, same_shape, shape_of, sizes_of

aten = torch.ops.aten


def _filled(value: float | None) -> Rule:
    """Creation of a tensor full of ``value``, or of the op's own ``fill_value`` or ``s``."""

    def rule(program: GraphProgram, node: Node) -> Node | None:
        names = [parameter.name for parameter in node.target._schema.arguments]
        number = value if value is not None else argument(node, "s" if "s" in names else "fill_value")
        if "size" in names:
            sizes = list(argument(node, "size"))
        else:
            sizes = sizes_of(program, node, node.args[0]) if isinstance(node.args[0], Node) else []
        return respell(node, aten.full.default, sizes, number, dtype=node.meta["val"].dtype)

    return rule


def _number(node: object) -> float | None:
    """The value of a constant tensor, looking through broadcasts and views."""
    while is_call(node, aten.expand.default, aten.reshape.default, aten.unsqueeze.default):
        node = node.args[0]
    if not is_call(node, aten.full.default) or isinstance(node.args[1], Node):
        return None
    value = torch.full((), node.args[1], dtype=node.meta["val"].dtype)
    return value.item()


def _with_number(program: GraphProgram, node: Node) -> Node | None:
    """A binary operator with a constant tensor, when using a number changes neither shape nor type of the result."""
    left, right = node.args[:2]
    candidates = [(left, right)]
    if node.target in (aten.add.Tensor, aten.mul.Tensor) and not node.kwargs:
        candidates.append((right, left))
    for kept, constant in candidates:
        number = _number(constant)
        if number is None or isinstance(number, bool) or not isinstance(kept, Node):
            continue
        if same_shape(shape_of(kept), shape_of(node)) and kept.meta["val"].dtype == node.meta["val"].dtype:
            return respell(node, node.target, kept, number, **node.kwargs)
    return None


def _and_with_constant(program: GraphProgram, node: Node) -> Node | None:
    """``x & True`` is x, when x has the shape of the result."""
    for kept, constant in (node.args, node.args[::-1]):
        if _number(constant) is True and same_shape(shape_of(kept), shape_of(node)):
            return kept
    return None


FOLD_CONSTANTS = GraphPass(
    "fold_constants",
    by_target(
        {
            aten.ones.default: _filled(1),
            aten.zeros.default: _filled(0),
            aten.new_ones.default: _filled(1),
            aten.new_zeros.default: _filled(0),
            aten.ones_like.default: _filled(1),
            aten.zeros_like.default: _filled(0),
            aten.full.default: _filled(None),
            aten.new_full.default: _filled(None),
            aten.full_like.default: _filled(None),
            aten.scalar_tensor.default: _filled(None),
            aten.add.Tensor: _with_number,
            aten.sub.Tensor: _with_number,
            aten.mul.Tensor: _with_number,
            aten.div.Tensor: _with_number,
            aten.bitwise_and.Tensor: _and_with_constant,
        }
    ),
)
