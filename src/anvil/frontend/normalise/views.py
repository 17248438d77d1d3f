"""One spelling for views: reshape, transpose or permute, slice, select; non-negative dimensions; known sizes numeric.

The graph is functional, so a view and a copy mean the same; whether memory moves is decided when strides are known.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from anvil.graph.inference import value_of
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import INT_MAX, GraphPass, argument, by_target, is_call, respell, shape_of

aten = torch.ops.aten


def _known(sizes: list[Any], shape: tuple[Any, ...]) -> list[Any]:
    """``sizes`` with every size that ``shape`` knows as a number."""
    return [actual if isinstance(actual, int) else asked for asked, actual in zip(sizes, shape, strict=True)]


def _reshape(program: GraphProgram, node: Node) -> Node | None:
    source, sizes = node.args
    return respell(node, aten.reshape.default, source, _known(list(sizes), shape_of(node)))


def _expand(program: GraphProgram, node: Node) -> Node | None:
    source, sizes = node.args[0], list(node.args[1])
    return respell(node, aten.expand.default, source, _known(sizes, shape_of(node)))


def _t(program: GraphProgram, node: Node) -> Node | None:
    source = node.args[0]
    return respell(node, aten.transpose.int, source, 0, 1) if len(shape_of(source)) == 2 else source


def _transpose(program: GraphProgram, node: Node) -> Node | None:
    rank = len(shape_of(node))
    if rank == 0:
        return node.args[0]
    first, second = sorted((argument(node, "dim0") % rank, argument(node, "dim1") % rank))
    return respell(node, aten.transpose.int, node.args[0], first, second)


def _permute(program: GraphProgram, node: Node) -> Node | None:
    source = node.args[0]
    order = [dim % len(shape_of(node)) for dim in argument(node, "dims")]
    moved = [dim for dim, origin in enumerate(order) if dim != origin]
    if len(moved) == 2:
        return respell(node, aten.transpose.int, source, *moved)
    return respell(node, aten.permute.default, source, order)


def _unsqueeze(program: GraphProgram, node: Node) -> Node | None:
    return respell(node, aten.unsqueeze.default, node.args[0], argument(node, "dim") % len(shape_of(node)))


def _squeeze(program: GraphProgram, node: Node) -> Node | None:
    """squeeze() and squeeze(dim) as squeeze(dims), with only the dimensions that are there and of size 1."""
    source = node.args[0]
    shape = shape_of(source)
    if node.target is aten.squeeze.default:
        asked = range(len(shape))
    else:
        given = argument(node, "dim")
        asked = sorted(dim % max(len(shape), 1) for dim in (given if isinstance(given, (list, tuple)) else [given]))
    dims = [dim for dim in asked if shape and shape[dim] == 1]
    return respell(node, aten.squeeze.dims, source, dims) if dims else source


def _bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Slice bounds in [0, size] where they are numbers; a symbolic end, and "to the end", stay as they are."""
    start = 0 if start is None else start
    end = INT_MAX if end is None else end
    if isinstance(size, int):
        if isinstance(start, int):
            start = min(max(start + size if start < 0 else start, 0), size)
        if isinstance(end, int):
            end = min(max(end + size if end < 0 else end, 0), size)
    return start, end


def _slice(program: GraphProgram, node: Node) -> Node | None:
    source = node.args[0]
    shape = shape_of(source)
    dim = argument(node, "dim") % len(shape)
    start, end = _bounds(shape[dim], argument(node, "start"), argument(node, "end"))
    return respell(node, aten.slice.Tensor, source, dim, start, end, argument(node, "step"))


def _select(program: GraphProgram, node: Node) -> Node | None:
    source = node.args[0]
    shape = shape_of(source)
    dim, index = argument(node, "dim") % len(shape), argument(node, "index")
    if isinstance(index, int) and index < 0 and isinstance(shape[dim], int):
        index += shape[dim]
    return respell(node, aten.select.int, source, dim, index)


def _part(program: GraphProgram, node: Node) -> Node | None:
    """One item of a split or unbind, as a slice or a select of the whole."""
    whole, item = node.args
    if is_call(whole, aten.unbind.int):
        source = whole.args[0]
        dim = argument(whole, "dim") % len(shape_of(source))
        return respell(node, aten.select.int, source, dim, item % len(whole.meta["val"]))
    if not is_call(whole, aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default):
        return None
    source = whole.args[0]
    dim = argument(whole, "dim") % len(shape_of(source))
    sizes = [value_of(piece).shape[dim] for piece in whole.meta["val"]]
    if not all(isinstance(size, int) for size in sizes):
        return None
    start = sum(sizes[: item % len(sizes)])
    return respell(node, aten.slice.Tensor, source, dim, start, start + sizes[item], 1)


CANONICAL_VIEWS = GraphPass(
    "canonical_views",
    by_target(
        {
            aten.view.default: _reshape,
            aten._unsafe_view.default: _reshape,
            aten.reshape.default: _reshape,
            aten.expand.default: _expand,
            aten.t.default: _t,
            aten.transpose.int: _transpose,
            aten.permute.default: _permute,
            aten.unsqueeze.default: _unsqueeze,
            aten.squeeze.default: _squeeze,
            aten.squeeze.dim: _squeeze,
            aten.squeeze.dims: _squeeze,
            aten.slice.Tensor: _slice,
            aten.select.int: _select,
            operator.getitem: _part,
        }
    ),
)
