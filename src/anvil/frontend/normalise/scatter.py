"""Writes into a part of a tensor, as functionalisation leaves them: the parts side by side again."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import (
    INT_MAX,
    GraphPass,
    argument,
    by_target,
    emit,
    is_call,
    respell,
    same_shape,
    shape_of,
    sizes_of,
)

aten = torch.ops.aten


def _joined(program: GraphProgram, node: Node, x: Node, middle: Node, dim: int, start: int, end: int) -> Node | None:
    """``x`` with ``[start, end)`` of a dimension of known size replaced by ``middle``; None where that may not fit."""
    size = shape_of(x)[dim]
    if not same_shape(shape_of(middle), [*shape_of(x)[:dim], end - start, *shape_of(x)[dim + 1 :]]):
        return None
    parts = [middle]
    if start > 0:
        parts.insert(0, _part(program, node, x, dim, 0, start))
    if end < size:
        parts.append(_part(program, node, x, dim, end, size))
    return middle if len(parts) == 1 else respell(node, aten.cat.default, parts, dim)


def _part(program: GraphProgram, node: Node, x: Node, dim: int, start: int, end: int) -> Node:
    """``x[start:end]``; where x was joined from parts and this is one of them, that part."""
    if is_call(x, aten.cat.default) and (x.args[1] if len(x.args) > 1 else 0) == dim:
        first = 0
        for part in x.args[0]:
            size = shape_of(part)[dim]
            if not isinstance(size, int) or first > start:
                break
            if (first, first + size) == (start, end):
                return part
            first += size
    return emit(program, node, aten.slice.Tensor, x, dim, start, end, 1)


def _slice_scatter(program: GraphProgram, node: Node) -> Node | None:
    x, part, start, end, step = (argument(node, name) for name in ("self", "src", "start", "end", "step"))
    dim = argument(node, "dim") % len(shape_of(x))
    size = shape_of(x)[dim]
    start = 0 if start is None else start
    end = INT_MAX if end is None else end
    if step == 1 and start == 0 and end == INT_MAX and same_shape(shape_of(part), shape_of(x)):
        return part
    if step != 1 or not all(isinstance(bound, int) for bound in (size, start, end)):
        return None
    start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, end))
    return _joined(program, node, x, part, dim, start, max(start, end))


def _select_scatter(program: GraphProgram, node: Node) -> Node | None:
    x, part, index = (argument(node, name) for name in ("self", "src", "index"))
    dim = argument(node, "dim") % len(shape_of(x))
    size = shape_of(x)[dim]
    if not isinstance(size, int) or not isinstance(index, int):
        return None
    index %= size
    return _joined(program, node, x, emit(program, node, aten.unsqueeze.default, part, dim), dim, index, index + 1)


def _fill(program: GraphProgram, node: Node) -> Node:
    value = node.args[1]
    sizes = sizes_of(program, node, node.args[0])
    if isinstance(value, Node):
        return emit(program, node, aten.expand.default, _cast(program, node, value), sizes)
    return emit(program, node, aten.full.default, sizes, value, dtype=node.meta["val"].dtype)


def _copy(program: GraphProgram, node: Node) -> Node:
    """The source in the shape and type of the destination."""
    destination, source = node.args[:2]
    value = _cast(program, node, source)
    if same_shape(shape_of(source), shape_of(destination)):
        return value
    return emit(program, node, aten.expand.default, value, sizes_of(program, node, destination))


def _cast(program: GraphProgram, node: Node, source: Node) -> Node:
    dtype = node.meta["val"].dtype
    if source.meta["val"].dtype == dtype:
        return source
    return emit(program, node, aten._to_copy.default, source, dtype=dtype)


REWRITES = {
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.fill.Scalar: _fill,
    aten.fill.Tensor: _fill,
    aten.copy.default: _copy,
}
JOIN_SCATTERS = GraphPass("join_scatters", by_target(REWRITES))
