"""Rotary embedding, attention and the key/value cache. Heads are dimension 1; only in a cache do they lie outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.fx import Node

from anvil import attention, kernels
from anvil.attention import AttentionVariant, Visibility
from anvil.attention.base import Element, Mask
from anvil.graph import cache_ops as _ops  # noqa: F401 (registers anvil::*)
from anvil.lower.sizes import same
from anvil.runtime.plan import Scalar, Size, View

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


def _append(place: str) -> Any:
    """Lowering of an op that writes new rows to a cache: (cache, [scales or table], new, past)."""

    def lower(low: Lowering, node: Node) -> None:
        cache, *between, new, past = node.args
        table = [low.with_inner_unit(item) for item in between] if place == "paged" else []
        scales = [low.view(item) for item in between] if place != "paged" else []
        arguments = [low.with_inner_unit(new), low.with_inner_unit(past), *table, low.view(cache), *scales]
        low.emit(kernels.get("kv_append").build(low.target, low.dtype(cache), place), arguments, node)

    return lower


def _attention_ring(low: Lowering, node: Node) -> View:
    q, k, v, past, scale, window, softcap, *scales = node.args
    k_scale, v_scale = scales or (None, None)
    rule = _rule(low, node, k, causal=True, window=window, softcap=softcap)
    operands = [*_stored(low, k, k_scale), *_stored(low, v, v_scale), low.with_inner_unit(past)]
    return _emit_variant(low, node, attention.get("sliding_window"), rule, q, operands, scale, softcap)


def _attention_paged(low: Lowering, node: Node) -> View:
    q, k, v, table, past, scale, window, softcap = node.args
    rule = _rule(low, node, k, causal=True, window=window, softcap=softcap)
    operands = [low.with_inner_unit(item) for item in (k, v, past, table)]
    return _emit_variant(low, node, attention.get("paged"), rule, q, operands, scale, softcap)


def _attention_latent(low: Lowering, node: Node) -> View:
    """Latents [B, T, K] are the keys of one head, and their first components its values."""
    q, latents, past, scale, width = node.args
    seen = low.with_inner_unit(latents)
    batch, keys, size = seen.sizes
    strides = (seen.strides[0], 0, *seen.strides[1:])
    k, v = (View(seen.buffer, seen.offset, (batch, 1, keys, part), strides) for part in (size, width))
    rule = _rule(low, node, latents, causal=True, window=None, softcap=None)
    operands = [k, v, low.with_inner_unit(past)]
    return _emit_variant(low, node, attention.get("mla"), rule, q, operands, scale, None)


def _stored(low: Lowering, cache: Node, scales: Node | None) -> list[View]:
    """A cache and, if there are, its scales."""
    return [low.with_inner_unit(cache), *([] if scales is None else [low.view(scales)])]


def _attention_cached(low: Lowering, node: Node) -> View:
    q, k, v, past, scale, window, softcap, *scales = node.args
    k_scale, v_scale = scales or (None, None)
    rule = _rule(low, node, k, causal=True, window=window, softcap=softcap)
    operands = [*_stored(low, k, k_scale), *_stored(low, v, v_scale), low.with_inner_unit(past)]
    return _emit(low, node, rule, q, operands, scale, softcap)


def _attention(low: Lowering, node: Node) -> View:
    """Without a cache: the query at row s stands at position ``offset + s``."""
    q, k, v, mask, scale, causal, window, softcap, offset = node.args
    past = low.filled(node, low.size(offset) if causal else 0, (low.shape(q)[0],), "i64")
    rule = _rule(low, node, k, causal=causal, window=window, softcap=softcap, mask=mask)
    operands = [low.with_inner_unit(k), low.with_inner_unit(v), past]
    if mask is not None:
        operands.append(_mask(low, mask, (*low.shape(q)[:3], low.shape(k)[2])))
    return _emit(low, node, rule, q, operands, scale, softcap)


#: Where the variants of a family find keys and values, for a message.
_PLACES = {
    "attention_ring": "lie in a ring",
    "attention_paged": "lie in pages behind a table",
    "attention_latent": "are latents, one per token",
}


def _rule(
    low: Lowering, node: Node, k: Node, *, causal: bool, window: Any, softcap: Any, mask: Node | None = None
) -> Visibility:
    """What the kernel is built for. Raises :class:`UnsupportedError` for element types that no kernel takes."""
    storage, element = low.dtype(k), "" if mask is None else low.dtype(mask)
    if low.dtype(node) != "f32" or storage not in get_args(Element) or element not in get_args(Mask):
        found = f"queries {low.dtype(node)}, keys {storage}, mask {element or 'none'}"
        raise low.unsupported(node, f"no attention kernel for {found}; queries and masks are f32, or a mask is bool")
    return Visibility(causal, None if window is None else int(window), softcap is not None, element, storage)  # type: ignore[arg-type]


def _mask(low: Lowering, mask: Node, shape: tuple[Size, ...]) -> View:
    """The mask as [B, H, S, T], repeated where it is broadcast."""
    view = low.view(mask)
    missing = len(shape) - len(view.sizes)
    return low.broadcast_to(
        View(view.buffer, view.offset, (1,) * missing + view.sizes, (0,) * missing + view.strides), shape
    )


def _emit(
    low: Lowering, node: Node, rule: Visibility, q: Node, operands: list[View], scale: float, softcap: float | None
) -> View:
    """Rows for one attention; ``operands`` are what the kernel takes between q and y."""
    variant = attention.get(low.attention)
    if variant.family != "attention":
        choices = ", ".join(attention.families()["attention"])
        raise low.unsupported(
            node,
            f"attention={variant.name!r} reads keys and values that {_PLACES[variant.family]}, here they lie by place; "
            f"choose one of {choices}, or call torch.ops.anvil.{variant.family}",
        )
    if same(low.shape(q)[2], 1) and rule.causal and "decode" not in variant.phases:
        variant = attention.get("decode")
    return _emit_variant(low, node, variant, rule, q, operands, scale, softcap)


def _emit_variant(
    low: Lowering,
    node: Node,
    variant: AttentionVariant,
    rule: Visibility,
    q: Node,
    operands: list[View],
    scale: float,
    softcap: float | None,
) -> View:
    result = low.allocate(node, low.shape(node), low.dtype(node), order=_HEADS_INSIDE)
    scalars = [Scalar(float(number), "f32") for number in (scale, softcap) if number is not None]
    kernel, inputs = variant.build(low.target, rule), [low.with_inner_unit(q), *operands]
    if variant.split is None or variant.merge is None:
        low.emit(kernel, [*inputs, result, *scalars], node)
        return result
    *rows, width = low.shape(node)
    parts = (operands[0].sizes[2] + variant.split - 1) // variant.split
    partial = low.allocate(node, (*rows, parts, width + 2), "f32", temp=True)
    low.emit(kernel, [*inputs, partial, *scalars], node)
    low.emit(variant.merge(low.target), [partial, result], node)
    return result


LOWERINGS = {
    anvil.rope.default: _rope,
    anvil.kv_append.default: _append("whole"),
    anvil.kv_append_quantised.default: _append("whole"),
    anvil.kv_append_ring.default: _append("ring"),
    anvil.kv_append_ring_quantised.default: _append("ring"),
    anvil.kv_append_paged.default: _append("paged"),
    anvil.attention_ring.default: _attention_ring,
    anvil.attention_paged.default: _attention_paged,
    anvil.attention_latent.default: _attention_latent,
    anvil.attention_cached.default: _attention_cached,
    anvil.attention.default: _attention,
}
