"""RMS normalisation: ``x * rsqrt(mean(x², -1) + eps) * weight`` in its spellings -> ``anvil::rms_norm``."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import (
    GraphPass,
    are_float32,
    argument,
    by_target,
    emit,
    is_call,
    respell,
    same_shape,
    shape_of,
)

aten = torch.ops.aten


def _is_weight(node: object, x: Node) -> bool:
    """A vector over the last dimension of ``x``."""
    return isinstance(node, Node) and same_shape(shape_of(node), shape_of(x)[-1:])


def _mean_square_of(node: object) -> Node | None:
    """x, when ``node`` is ``mean(x * x, -1, keepdim)``, also as a sum divided by the length."""
    if is_call(node, aten.mean.dim):
        reduction = node
    elif is_call(node, aten.div.Tensor, aten.mul.Tensor) and is_call(node.args[0], aten.sum.dim_IntList):
        reduction, factor = node.args
        length = shape_of(reduction.args[0])[-1]
        wanted = length if node.target is aten.div.Tensor else 1 / length
        if not isinstance(length, int) or factor != wanted:
            return None
    else:
        return None
    square = reduction.args[0]
    last = len(shape_of(square)) - 1
    if [dim % (last + 1) for dim in argument(reduction, "dim") or []] != [last] or not argument(reduction, "keepdim"):
        return None
    return square.args[0] if is_call(square, aten.mul.Tensor) and square.args[0] is square.args[1] else None


def _epsilon_sum(node: object) -> tuple[Node, float] | None:
    """(x, eps) when ``node`` is ``mean(x²) + eps`` with a positive number eps."""
    if not is_call(node, aten.add.Tensor) or node.kwargs:
        return None
    for mean, eps in (node.args, node.args[::-1]):
        x = _mean_square_of(mean)
        if x is not None and isinstance(eps, (int, float)) and eps > 0:
            return x, float(eps)
    return None


def _inverse_root(node: object) -> tuple[Node, float] | None:
    """(x, eps) when ``node`` is ``1 / sqrt(mean(x²) + eps)``."""
    if is_call(node, aten.rsqrt.default):
        return _epsilon_sum(node.args[0])
    if is_call(node, aten.reciprocal.default) and is_call(node.args[0], aten.sqrt.default):
        return _epsilon_sum(node.args[0].args[0])
    return None


def _normed(node: object) -> tuple[Node, float] | None:
    """(x, eps) when ``node`` is ``x / sqrt(mean(x²) + eps)``."""
    if is_call(node, aten.mul.Tensor):
        for x, scale in (node.args, node.args[::-1]):
            found = _inverse_root(scale)
            if found and found[0] is x:
                return found
    if is_call(node, aten.div.Tensor) and is_call(node.args[1], aten.sqrt.default):
        found = _epsilon_sum(node.args[1].args[0])
        if found and found[0] is node.args[0]:
            return found
    return None


def _weighted(node: Node) -> tuple[Node, Node, float] | None:
    """(x, weight, eps) when a product is a weighted RMS norm, with the weight applied after or before the scale."""
    for weight, rest in (node.args, node.args[::-1]):
        found = _normed(rest)
        if found and _is_weight(weight, found[0]):
            return found[0], weight, found[1]
        found = _inverse_root(weight)
        if found and is_call(rest, aten.mul.Tensor):
            for x, factor in (rest.args, rest.args[::-1]):
                if x is found[0] and _is_weight(factor, x):
                    return x, factor, found[1]
    return None


def _fuse_product(program: GraphProgram, node: Node) -> Node | None:
    found = _weighted(node)
    if found is None:
        return None
    x, weight, eps = found
    if not are_float32(x, weight, node) or not same_shape(shape_of(x), shape_of(node)):
        return None
    program.notes.append(f"fuse_rms_norm: eps={eps} at {source_line(node)}")
    return respell(node, torch.ops.anvil.rms_norm.default, x, weight, eps)


def _fuse_native(program: GraphProgram, node: Node) -> Node | None:
    """``torch.nn.RMSNorm`` over the last dimension; without eps it uses the machine epsilon of the type."""
    x, weight, eps = (argument(node, name) for name in ("input", "weight", "eps"))
    if weight is None or not _is_weight(weight, x) or not are_float32(x, weight):
        return None
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    program.notes.append(f"fuse_rms_norm: eps={eps} at {source_line(node)}")
    return emit(program, node, torch.ops.anvil.rms_norm.default, x, weight, eps)


FUSE_RMS_NORM = GraphPass(
    "fuse_rms_norm", by_target({aten.mul.Tensor: _fuse_product, aten.rms_norm.default: _fuse_native})
)
