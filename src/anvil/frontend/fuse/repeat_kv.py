"""Grouped-query attention: keys and values repeated per query head are read in place by ``anvil::attention``.

Only ``repeat`` order folds (each head copied next to itself). ``tile`` order (the whole list of heads repeated) maps
query heads to other key heads and must stay.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, argument, by_target, is_call, respell, same_shape, shape_of

aten = torch.ops.aten


def _unrepeated(node: Node) -> Node | None:
    """x [B, Hkv, T, D], when ``node`` is [B, Hkv * n, T, D] with every head of x n times in a row."""
    if is_call(node, aten.repeat_interleave.self_int):
        x, repeats, dim = (argument(node, name) for name in ("self", "repeats", "dim"))
        return x if dim in (1, -3) and isinstance(repeats, int) and len(shape_of(x)) == 4 else None
    if not is_call(node, aten.reshape.default) or not is_call(node.args[0], aten.expand.default):
        return None
    spread = node.args[0]
    inserted = spread.args[0]
    if not is_call(inserted, aten.unsqueeze.default) or inserted.args[1] != 2:
        return None
    x = inserted.args[0]
    if len(shape_of(x)) != 4 or not isinstance(shape_of(spread)[2], int):
        return None
    batch, heads, keys, width = shape_of(x)
    copies = shape_of(spread)[2]
    widened = same_shape(shape_of(spread), (batch, heads, copies, keys, width))
    return x if widened and same_shape(shape_of(node), (batch, heads * copies, keys, width)) else None


def _fold(program: GraphProgram, node: Node) -> Node | None:
    q, k, v, *rest = node.args
    plain_k, plain_v = _unrepeated(k), _unrepeated(v)
    if plain_k is None or plain_v is None or shape_of(plain_k)[1] != shape_of(plain_v)[1]:
        return None
    heads = f"{shape_of(q)[1]} query heads read {shape_of(plain_k)[1]} key heads"
    program.notes.append(f"fold_repeat_kv: {heads} at {source_line(node)}")
    return respell(node, torch.ops.anvil.attention.default, q, plain_k, plain_v, *rest)


FOLD_REPEAT_KV = GraphPass("fold_repeat_kv", by_target({torch.ops.anvil.attention.default: _fold}))
