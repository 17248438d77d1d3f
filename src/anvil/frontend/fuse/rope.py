"""Rotary embedding of half-split pairs (d, d + D/2) -> ``anvil::rope``; neighbouring pairs are left alone."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, are_float32, by_target, emit, is_call, same_shape, same_size, shape_of

aten = torch.ops.aten


def _half(node: object) -> tuple[Node, int] | None:
    """(x, 0 or 1) when ``node`` is the lower or upper half of the last dimension of a rank-4 ``x``."""
    if not is_call(node, aten.slice.Tensor):
        return None
    x, dim, start, end, step = node.args
    width = shape_of(x)[-1]
    if len(shape_of(x)) != 4 or dim != 3 or step != 1 or not isinstance(width, int) or width % 2:
        return None
    bounds = (start, end)
    return {(0, width // 2): (x, 0), (width // 2, width): (x, 1)}.get(bounds)


def _negated(node: object) -> object | None:
    if is_call(node, aten.neg.default):
        return node.args[0]
    if is_call(node, aten.mul.Tensor) and node.args[1] == -1:
        return node.args[0]
    return None


def _rotated(node: object) -> Node | None:
    """x, when ``node`` is ``cat([-upper half of x, lower half of x], -1)``."""
    if not is_call(node, aten.cat.default) or node.args[1] != 3 or len(node.args[0]) != 2:
        return None
    first, second = _half(_negated(node.args[0][0])), _half(node.args[0][1])
    if first is None or second is None or first[0] is not second[0]:
        return None
    return first[0] if (first[1], second[1]) == (1, 0) else None


def _products(node: Node, target: object) -> list[tuple[Node, Node]] | None:
    """The factors of both terms of a sum or difference of two products."""
    if not is_call(node, target) or node.kwargs:
        return None
    terms = node.args[:2]
    return [term.args[:2] for term in terms] if all(is_call(term, aten.mul.Tensor) for term in terms) else None


def _orders(pair: tuple[Node, Node]) -> tuple[tuple[Node, Node], tuple[Node, Node]]:
    return (pair[0], pair[1]), (pair[1], pair[0])


def _match_sum(node: Node) -> tuple[Node, Node, Node] | None:
    """(x, cos, sin) when ``node`` is ``x * cos + rotated(x) * sin``."""
    products = _products(node, aten.add.Tensor)
    if products is None:
        return None
    for plain, turned in (products, products[::-1]):
        for rotation, sin in _orders(turned):
            source = _rotated(rotation)
            for x, cos in _orders(plain):
                if source is not None and x is source and isinstance(cos, Node) and isinstance(sin, Node):
                    return x, cos, sin
    return None


def _halves(products: list[tuple[Node, Node]] | None) -> dict[int, tuple[Node, Node]] | None:
    """Half number -> (x, table), in the order of the terms, when each product is of a half and a table."""
    found: dict[int, tuple[Node, Node]] = {}
    for product in products or ():
        for half, table in _orders(product):
            match = _half(half)
            if match and isinstance(table, Node):
                found[match[1]] = (match[0], table)
                break
    return found if len(found) == 2 else None


def _match_halves(node: Node) -> tuple[Node, Node, Node] | None:
    """(x, cos, sin) when ``node`` is ``cat([lo * cos - hi * sin, hi * cos + lo * sin], -1)`` with half-width tables."""
    if not is_call(node, aten.cat.default) or node.args[1] != 3 or len(node.args[0]) != 2:
        return None
    lower = _halves(_products(node.args[0][0], aten.sub.Tensor))
    upper = _halves(_products(node.args[0][1], aten.add.Tensor))
    if lower is None or upper is None or list(lower) != [0, 1]:
        return None
    x, cos, sin = lower[0][0], lower[0][1], lower[1][1]
    same_x = all(half[0] is x for table in (lower, upper) for half in table.values())
    return (x, cos, sin) if same_x and upper[1][1] is cos and upper[0][1] is sin else None


def _heads_dim(x: Node, tables: tuple[Node, Node]) -> int | None:
    """1 for x [B, H, S, D], 2 for x [B, S, H, D]: the dimension of size 1 in tables that follow the other one."""
    for heads, tokens in ((1, 2), (2, 1)):
        if all(
            same_size(_aligned(table)[heads], 1) and same_size(_aligned(table)[tokens], shape_of(x)[tokens])
            for table in tables
        ):
            return heads
    return None


def _aligned(table: Node) -> tuple[int | torch.SymInt, ...]:
    shape = shape_of(table)
    return (1,) * (4 - len(shape)) + shape


def _table(program: GraphProgram, before: Node, table: Node, heads: int, width: int) -> Node | None:
    """A cos or sin table as [B or 1, S, D]: without its dimension for heads, and twice itself if of half width."""
    columns = shape_of(table)[-1]
    if is_call(table, aten.unsqueeze.default) and len(shape_of(table)) == 4 and table.args[1] == heads:
        flat = table.args[0]
    else:
        flat = table
        for _ in range(4 - len(shape_of(table))):
            flat = emit(program, before, aten.unsqueeze.default, flat, 0)
        flat = emit(program, before, aten.squeeze.dims, flat, [heads])
    if same_size(columns, width):
        return flat
    return emit(program, before, aten.cat.default, [flat, flat], 2)


def _fuse(program: GraphProgram, node: Node, match: tuple[Node, Node, Node] | None, parts: int) -> Node | None:
    """Replace a match whose tables have 1/``parts`` of the width of x."""
    if match is None:
        return None
    x, cos, sin = match
    width = shape_of(x)[3]
    if any(len(shape_of(table)) > 4 or not same_size(shape_of(table)[-1], width // parts) for table in (cos, sin)):
        return None
    if not are_float32(x, cos, sin, node) or not same_shape(shape_of(x), shape_of(node)):
        return None
    heads = _heads_dim(x, (cos, sin))
    if heads is None:
        return None
    tables = [_table(program, node, table, heads, width) for table in (cos, sin)]
    program.notes.append(f"fuse_rope: half-split, width {width}, at {source_line(node)}")
    if heads == 1:
        return emit(program, node, torch.ops.anvil.rope.default, x, *tables)
    swapped = emit(program, node, aten.transpose.int, x, 1, 2)
    turned = emit(program, node, torch.ops.anvil.rope.default, swapped, *tables)
    return emit(program, node, aten.transpose.int, turned, 1, 2)


FUSE_ROPE = GraphPass(
    "fuse_rope",
    by_target(
        {
            aten.add.Tensor: lambda program, node: _fuse(program, node, _match_sum(node), parts=1),
            aten.cat.default: lambda program, node: _fuse(program, node, _match_halves(node), parts=2),
        }
    ),
)
