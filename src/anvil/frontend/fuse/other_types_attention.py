"""``anvil::attention`` of other types than f32: attention kernels compute in f32 only.

f16 and bf16 are widened for the kernel and its result rounded once: their scores may exceed f16 (65504), and PyTorch
holds them in f32 too. Everything else is written out again in its own type.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, by_target, emit, shape_of, sizes_of

aten = torch.ops.aten
NARROW = {torch.float16, torch.bfloat16}


def _repeated(program: GraphProgram, node: Node, x: Node, heads: int) -> Node:
    """Keys or values [B, Hkv, T, D] with each head copied next to itself, up to ``heads``."""
    own = shape_of(x)[1]
    if own == heads:
        return x
    batch, _, keys, width = sizes_of(program, node, x)
    spread = emit(program, node, aten.unsqueeze.default, x, 2)
    spread = emit(program, node, aten.expand.default, spread, [batch, own, heads // own, keys, width])
    return emit(program, node, aten.reshape.default, spread, [batch, heads, keys, width])


def _visible(program: GraphProgram, node: Node) -> Node:
    """bool [S, T] of a causal rule."""
    q, k, window, offset = node.args[0], node.args[1], node.args[6], node.args[8]

    def call(target: object, *args: object) -> Node:
        return emit(program, node, target, *args)

    rows, columns = sizes_of(program, node, q)[2], sizes_of(program, node, k)[2]
    position = call(aten.add.Tensor, call(aten.unsqueeze.default, call(aten.arange.default, rows), 1), offset)
    key = call(aten.arange.default, columns)
    seen = call(aten.le.Tensor, key, position)
    if window is None:
        return seen
    return call(aten.bitwise_and.Tensor, seen, call(aten.gt.Tensor, key, call(aten.sub.Tensor, position, window)))


def _rewritten(program: GraphProgram, node: Node) -> Node | None:
    types = {item.meta["val"].dtype for item in node.args[:3]}
    if types == {torch.float32} and _has_kernel(node.args[3]):
        return None
    return _widened(program, node) if types <= NARROW else _written_out(program, node)


def _widened(program: GraphProgram, node: Node) -> Node:
    """The same attention in f32, rounded once."""

    def converted(x: Node, dtype: torch.dtype) -> Node:
        return emit(program, node, aten._to_copy.default, x, dtype=dtype)

    q, k, v, mask, *rest = node.args
    if mask is not None and not _has_kernel(mask):
        mask = converted(mask, torch.float32)
    wide = [converted(x, torch.float32) for x in (q, k, v)]
    result = emit(program, node, torch.ops.anvil.attention.default, *wide, mask, *rest)
    program.notes.append(f"widen_attention: at {source_line(node)}")
    return converted(result, node.meta["val"].dtype)


def _written_out(program: GraphProgram, node: Node) -> Node:
    q, k, v, mask, scale, causal, _, softcap, _ = node.args

    def call(target: object, *args: object) -> Node:
        return emit(program, node, target, *args)

    heads = shape_of(q)[1]
    turned = call(aten.transpose.int, _repeated(program, node, k, heads), 2, 3)
    scores = call(aten.mul.Tensor, call(aten.matmul.default, q, turned), scale)
    if softcap is not None:
        scores = call(aten.mul.Tensor, call(aten.tanh.default, call(aten.div.Tensor, scores, softcap)), softcap)
    if causal:
        mask = _visible(program, node)
    if mask is not None and mask.meta["val"].dtype == torch.bool:
        scores = call(aten.where.ScalarOther, mask, scores, -torch.inf)
    elif mask is not None:
        scores = call(aten.add.Tensor, scores, mask)
    blind = call(aten.eq.Scalar, call(aten.amax.default, scores, [3], True), -torch.inf)  # the softmax there is NaN
    weights = call(aten.where.ScalarSelf, blind, 0.0, call(aten.softmax.int, scores, 3, None))
    program.notes.append(f"write_out_attention: at {source_line(node)}")
    return call(aten.matmul.default, weights, _repeated(program, node, v, heads))


def _has_kernel(mask: Node | None) -> bool:
    return mask is None or mask.meta["val"].dtype in (torch.bool, torch.float32)


WRITE_OUT_ATTENTION = GraphPass("write_out_attention", by_target({torch.ops.anvil.attention.default: _rewritten}))
