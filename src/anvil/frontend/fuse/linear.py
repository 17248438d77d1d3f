"""Products with a transposed matrix: ``x @ w.T`` as matmul, mm or addmm -> ``aten::linear``."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, by_target, is_call, respell, shape_of

aten = torch.ops.aten


def _transposed_matrix(node: object) -> Node | None:
    """w, when ``node`` is ``w.T`` of a matrix."""
    if is_call(node, aten.transpose.int) and len(shape_of(node)) == 2:
        return node.args[0]
    return None


def _product(program: GraphProgram, node: Node) -> Node | None:
    weight = _transposed_matrix(node.args[1])
    return None if weight is None else respell(node, aten.linear.default, node.args[0], weight)


def _product_plus(program: GraphProgram, node: Node) -> Node | None:
    bias, x, matrix = node.args[:3]
    weight = _transposed_matrix(matrix)
    if weight is None or len(shape_of(bias)) != 1 or node.kwargs:
        return None
    return respell(node, aten.linear.default, x, weight, bias)


FUSE_LINEAR = GraphPass(
    "fuse_linear",
    by_target(
        {aten.matmul.default: _product, aten.mm.default: _product, aten.addmm.default: _product_plus},
    ),
)
