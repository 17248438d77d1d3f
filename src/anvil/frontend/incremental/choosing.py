"""Choices inside a token, as a router of experts makes them: the largest elements, elements by index."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role
from anvil.graph.rewrite import argument, shape_of

Result = tuple[Node, Role]


def topk(build: Rebuild, node: Node) -> Result:
    """Values and indices, both with the axes of the operand."""
    role = build.role(node.args[0])
    dim = argument(node, "dim") % len(role.axes)
    if role.axes[dim] is not Axis.PLAIN or role.lifted:
        build.refuse(node, f"chooses along dimension {dim}, which is {role.axes[dim].value}")
    return build.copy(node), role


def getitem(build: Rebuild, node: Node) -> Result:
    """One of several results; all have the same axes."""
    return build.copy(node), build.role(node.args[0])


def by_index(build: Rebuild, node: Node) -> Result:
    """gather and scatter: operands of equal rank that agree on everything but a plain dimension."""
    operands = [item for item in node.all_input_nodes if isinstance(item.meta["val"], torch.Tensor)]
    roles = [build.role(operand) for operand in operands]
    dim = argument(node, "dim") % len(roles[0].axes)
    if any(role != roles[0] for role in roles) or roles[0].lifted or roles[0].axes[dim] is not Axis.PLAIN:
        build.refuse(node, "reaches across tokens or batch rows")
    return build.copy(node), roles[0]


def expert_linear(build: Rebuild, node: Node) -> Result:
    x, weight, ids = node.args
    rows, chosen = build.role(x), build.role(ids)
    if not build.role(weight).plain or rows.lifted or chosen.lifted:
        build.refuse(node, "the experts' weights depend on tokens, or its rows only on positions")
    if len(shape_of(ids)) != 2 or rows.axes[0] is not chosen.axes[0] or set(rows.axes[1:]) != {Axis.PLAIN}:
        build.refuse(node, "tokens are not the first dimension of its rows")
    return build.copy(node), Role((*chosen.axes, Axis.PLAIN))
