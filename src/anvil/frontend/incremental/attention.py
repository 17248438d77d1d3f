"""Causal attention reads a cache instead of the whole sequence; rotary embedding takes one table per row."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.frontend.incremental.pointwise import lower
from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role

_HEADS_FIRST = Role((Axis.BATCH, Axis.PLAIN, Axis.TOKEN, Axis.PLAIN))


def attention(build: Rebuild, node: Node) -> tuple[Node, Role]:
    q, k, v, mask, scale, causal, window, softcap, offset = node.args
    if mask is not None:
        build.refuse(node, "its mask is a tensor that follows no known rule")
    if not causal:
        build.refuse(node, "is not causal: earlier tokens see later ones")
    if offset != 0:
        build.refuse(node, f"its mask is shifted: query i sees keys up to i + {offset}")
    for item in (q, k, v):
        if build.role(item) != _HEADS_FIRST:
            build.refuse(node, f"operand {item.name} is not [batch, heads, tokens, width]")
    anvil = torch.ops.anvil
    key_cache, value_cache, *scales = build.caches[node]
    if scales:
        key_scale, value_scale = scales
        build.emit(anvil.kv_append_quantised.default, key_cache, key_scale, build.new(k), build.past)
        build.emit(anvil.kv_append_quantised.default, value_cache, value_scale, build.new(v), build.past)
    else:
        build.emit(anvil.kv_append.default, key_cache, build.new(k), build.past)
        build.emit(anvil.kv_append.default, value_cache, build.new(v), build.past)
    cached = (build.new(q), key_cache, value_cache, build.past, scale, window, softcap, *(scales or (None, None)))
    return build.emit(anvil.attention_cached.default, *cached), _HEADS_FIRST


def rope(build: Rebuild, node: Node) -> tuple[Node, Role]:
    x, *tables = node.args
    if build.role(x) != _HEADS_FIRST:
        build.refuse(node, f"operand {x.name} is not [batch, heads, tokens, width]")
    new_tables = []
    for table in tables:
        role = build.role(table)
        if role.axes[1:] != (Axis.TOKEN, Axis.PLAIN):
            build.refuse(node, f"table {table.name} is not [batch, tokens, width]")
        new_tables.append(lower(build, table, 3, 0) if role.lifted else build.new(table))
    return build.emit(node.target, build.new(x), *new_tables), _HEADS_FIRST
