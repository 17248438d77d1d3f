"""Rotary embedding, attention and the key/value cache. Heads are dimension 1; only in a cache do they lie outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from anvil import attention, kernels
from anvil.attention import Visibility
from anvil.graph import ops as _ops  # noqa: F401 (registers anvil::*)
from anvil.lower.sizes import same
from anvil.runtime.plan import Scalar, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

anvil = torch.ops.anvil
_HEADS_INSIDE = (0, 2, 1, 3)  # [B, H, S, D] stored as [B, S, H, D]: the transpose that follows is free


def _rope(low: Lowering, node: Node) -> View:
    x, cos, sin = node.args
    batch, _, tokens, size = low.shape(x)
    angles = [low.broadcast_to(low.with_inner_unit(angle), (batch, tokens, size)) for angle in (cos, sin)]
    result = low.allocate(node, low.shape(node), low.dtype(node), order=_HEADS_INSIDE)
    low.emit(kernels.get("rope").build(low.target), [low.with_inner_unit(x), *angles, result], node)
    return result


def _kv_append(low: Lowering, node: Node) -> None:
    cache, new, past = node.args
    arguments = [low.with_inner_unit(new), low.with_inner_unit(past), low.view(cache)]
    low.emit(kernels.get("kv_append").build(low.target), arguments, node)


def _attention_cached(low: Lowering, node: Node) -> View:
    q, k, v, past, scale, window, softcap = node.args
    return _emit(low, node, q, k, v, low.with_inner_unit(past), scale, causal=True, window=window, softcap=softcap)


def _attention(low: Lowering, node: Node) -> View:
    """Without a cache: the query at row s stands at position ``offset + s``."""
    q, k, v, mask, scale, causal, window, softcap, offset = node.args
    if mask is not None:
        raise low.unsupported(node, "no attention kernel takes a mask tensor")
    batch = low.shape(q)[0]
    past = low.filled(node, low.size(offset) if causal else 0, (batch,), "i64")
    return _emit(low, node, q, k, v, past, scale, causal=causal, window=window, softcap=softcap)


def _emit(
    low: Lowering, node: Node, q: Node, k: Node, v: Node, past: View, scale: float, *, causal: bool, window: Any,
    softcap: Any,
) -> View:  # fmt: skip
    if softcap is not None:
        raise low.unsupported(node, f"no attention kernel has a soft cap (softcap={softcap})")
    one_query = same(low.shape(q)[2], 1) and causal
    variant = attention.get("decode" if one_query else low.attention)
    kernel = variant.build(low.target, Visibility(causal, None if window is None else int(window)))
    result = low.allocate(node, low.shape(node), low.dtype(node), order=_HEADS_INSIDE)
    operands = [low.with_inner_unit(operand) for operand in (q, k, v)]
    low.emit(kernel, [*operands, past, result, Scalar(float(scale), "f32")], node)
    return result


LOWERINGS = {
    anvil.rope.default: _rope,
    anvil.kv_append.default: _kv_append,
    anvil.attention_cached.default: _attention_cached,
    anvil.attention.default: _attention,
}
