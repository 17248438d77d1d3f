"""Token positions, and lookups in tables by them."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.fx import Node

from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role
from anvil.frontend.index_formulas import index_symbol
from anvil.graph.rewrite import shape_of

aten = torch.ops.aten


def position(build: Rebuild, node: Node) -> tuple[Node, Role]:
    """An index tensor whose elements are the token's index, plus a number: the new tokens stand behind the past."""
    axes = [build.axis_of_size(size) for size in shape_of(node)]
    if not {None, Axis.TOKEN, Axis.BOTH} & set(axes):
        return build.copy(node), Role(tuple(axes))
    formula = build.formulas.of(node)
    if formula is None or axes not in ([Axis.TOKEN], [Axis.BATCH, Axis.TOKEN]):
        _refuse_position(build, node)
    start = formula - index_symbol(len(axes) - 1)
    if not start.is_Integer:
        _refuse_position(build, node)
    lifted = len(axes) == 1
    return build.positions(int(start)), Role(tuple(axes), lifted)


def _refuse_position(build: Rebuild, node: Node) -> NoReturn:
    build.refuse(node, "is not the position of each token plus a number")


def embedding(build: Rebuild, node: Node) -> tuple[Node, Role]:
    table, index = node.args[:2]
    role = build.role(index)
    if not build.role(table).plain:
        build.refuse(node, "the table depends on tokens")
    return build.copy(node), Role((*role.axes, Axis.PLAIN), role.lifted)


def gather_rows(build: Rebuild, node: Node) -> tuple[Node, Role]:
    """``table[index]`` of a plain table."""
    table, indices = node.args
    if len(indices) != 1 or not build.role(table).plain:
        build.refuse(node, "is not a lookup of rows in a table of weights")
    role = build.role(indices[0])
    trailing = (Axis.PLAIN,) * (len(shape_of(table)) - 1)
    return build.copy(node), Role((*role.axes, *trailing), role.lifted)
