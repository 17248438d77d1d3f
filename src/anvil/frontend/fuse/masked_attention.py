"""``anvil::attention`` with a mask tensor, written out again: no attention kernel takes an arbitrary mask."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, by_target, emit, shape_of, sizes_of

aten = torch.ops.aten


def _repeated(program: GraphProgram, node: Node, x: Node, heads: int) -> Node:
    """Keys or values [B, Hkv, T, D] with each head copied next to itself, up to ``heads``."""
    own = shape_of(x)[1]
    if own == heads:
        return x
    batch, _, keys, width = sizes_of(program, node, x)
    spread = emit(program, node, aten.unsqueeze.default, x, 2)
    spread = emit(program, node, aten.expand.default, spread, [batch, own, heads // own, keys, width])
    return emit(program, node, aten.reshape.default, spread, [batch, heads, keys, width])


def _write_out(program: GraphProgram, node: Node) -> Node | None:
    q, k, v, mask, scale, _, _, softcap, _ = node.args
    if mask is None:
        return None

    def call(target: object, *args: object) -> Node:
        return emit(program, node, target, *args)

    heads = shape_of(q)[1]
    turned = call(aten.transpose.int, _repeated(program, node, k, heads), 2, 3)
    scores = call(aten.mul.Tensor, call(aten.matmul.default, q, turned), scale)
    if softcap is not None:
        scores = call(aten.mul.Tensor, call(aten.tanh.default, call(aten.div.Tensor, scores, softcap)), softcap)
    if mask.meta["val"].dtype == torch.bool:
        scores = call(aten.where.ScalarOther, mask, scores, -torch.inf)
    else:
        scores = call(aten.add.Tensor, scores, mask)
    blind = call(aten.eq.Scalar, call(aten.amax.default, scores, [3], True), -torch.inf)  # the softmax there is NaN
    weights = call(aten.where.ScalarSelf, blind, 0.0, call(aten.softmax.int, scores, 3, None))
    program.notes.append(f"write_out_masked_attention: at {source_line(node)}")
    return call(aten.matmul.default, weights, _repeated(program, node, v, heads))


WRITE_OUT_MASKED_ATTENTION = GraphPass(
    "write_out_masked_attention", by_target({torch.ops.anvil.attention.default: _write_out})
)
