"""The named operations of a language model, as PyTorch operators: ``torch.ops.anvil.*``.

Fusion passes rewrite ATen patterns to these. Each has an eager implementation, so a graph that holds them still runs
in PyTorch, and a fake implementation, so symbolic shapes flow through. Letters: B batch, S tokens of this call,
T keys, C cache capacity (slots), H query heads, Hkv key/value heads (H a multiple of Hkv), D head or model size.
Graphs always pass every argument by position, in the order of the schema.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from anvil.errors import InputError

_LIB = torch.library.Library("anvil", "DEF")

_SCHEMAS = (
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    "rope(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool causal, SymInt? window, float? softcap,"
    " SymInt offset) -> Tensor",
    "attention_cached(Tensor q, Tensor k_cache, Tensor v_cache, Tensor past, float scale, SymInt? window,"
    " float? softcap, Tensor? k_scale=None, Tensor? v_scale=None) -> Tensor",
    "kv_append(Tensor(a!) cache, Tensor new, Tensor past) -> ()",
    "kv_append_quantised(Tensor(a!) cache, Tensor(b!) scales, Tensor new, Tensor past) -> ()",
    "swiglu(Tensor gate, Tensor up) -> Tensor",
    "take_row(Tensor x, Tensor last) -> Tensor",
    "expert_linear(Tensor x, Tensor weight, Tensor ids) -> Tensor",
)
for _schema in _SCHEMAS:
    _LIB.define(_schema)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x * rsqrt(mean(x², -1) + eps) * weight``; x [..., D], weight [D]. The mean is taken in at least f32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (d, d + D/2) of each head; x [B, H, S, D], cos and sin [B or 1, S, D], D even."""
    low, high = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-high, low), dim=-1) * sin[:, None]


def grouped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Softmax attention, query head h reading key/value head ``h // (H // Hkv)``; a row that sees no key is zero."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), dim=-1).masked_fill(dead, 0.0)
    return weights @ v


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    offset: int,
) -> torch.Tensor:
    """Scaled dot-product attention; q [B, H, S, D], k and v [B, Hkv, T, D] -> [B, H, S, D].

    With ``causal`` query i sees keys ``j <= i + offset`` and, with ``window``, only ``j > i + offset - window`` (the
    window counts the query's own position). ``mask`` broadcasts to [B, H, S, T]: bool (True is visible) or added to
    the scores; it excludes ``causal``. ``softcap`` bounds the scores by ``c * tanh(score / c)`` before any mask.
    """
    visible, bias = None, None
    if causal:
        query = torch.arange(q.shape[2], device=q.device)[:, None] + offset
        key = torch.arange(k.shape[2], device=q.device)[None, :]
        visible = key <= query
        if window is not None:
            visible = visible & (key > query - window)
    elif mask is not None and mask.dtype == torch.bool:
        visible = mask
    else:
        bias = mask
    return grouped_attention(q, k, v, visible, bias, scale, softcap)


def attention_cached(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    past: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention over a cache; q [B, H, S, D], caches [B, Hkv, C, D], past i64 [B] -> [B, H, S, D].

    Query s of row b stands at position ``past[b] + s`` and sees cache slots up to it. Slots beyond are never read
    into the result, whatever they hold. Caches may be of a narrower type than q; int8 ones come with scales
    [B, Hkv, C] that their rows are multiplied by.
    """
    k_cache, v_cache = as_stored(k_cache, k_scale, q.dtype), as_stored(v_cache, v_scale, q.dtype)
    query = past[:, None, None, None] + torch.arange(q.shape[2], device=q.device)[:, None]
    slot = torch.arange(k_cache.shape[2], device=q.device)
    visible = slot <= query  # [B, 1, S, C]
    if window is not None:
        visible = visible & (slot > query - window)
    written = visible.any(2)[..., None]  # [B, 1, C, 1]
    k, v = (torch.where(written, cache, 0.0) for cache in (k_cache, v_cache))
    return grouped_attention(q, k, v, visible, None, scale, softcap)


def as_stored(cache: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """What the rows of a cache stand for."""
    numbers = cache.to(dtype)
    return numbers if scales is None else numbers * scales[..., None].to(dtype)


def kv_append(cache: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> None:
    """Write ``new`` [B, Hkv, S, D] to slots ``past[b] + s`` of ``cache`` [B, Hkv, C, D], in place and in its type.

    Raises InputError when a slot is outside the cache.
    """
    capacity, tokens = cache.shape[2], new.shape[2]
    if past.numel() and (int(past.min()) < 0 or int(past.max()) + tokens > capacity):
        raise InputError(
            f"appending to a KV cache: past={past.tolist()} with {tokens} new tokens, expected every slot in"
            f" [0, {capacity}); allocate a larger cache"
        )
    slots = past[:, None] + torch.arange(tokens, device=past.device)  # [B, S]
    rows = torch.arange(cache.shape[0], device=past.device)[:, None]
    cache.transpose(1, 2)[rows, slots] = new.transpose(1, 2).to(cache.dtype)


def kv_append_quantised(cache: torch.Tensor, scales: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> None:
    """``kv_append`` to an int8 cache with ``scales`` f32 [B, Hkv, C], one per token and head.

    scale = max|x| / 127; codes = x / scale, rounded to nearest even. A row of zeros has scale 0, one that is not finite
    scale NaN. Raises InputError as :func:`kv_append`.
    """
    codes, scale = quantised_rows(new)
    kv_append(cache, codes, past)
    kv_append(scales[..., None], scale[..., None], past)


def quantised_rows(new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes and scales of rows [..., D]."""
    most = new.abs().amax(-1) if new.shape[-1] else new.new_zeros(new.shape[:-1])
    scale = most / 127 + (most - most)
    codes = torch.round(new / torch.where(scale == 0, 1.0, scale)[..., None]).clamp(-127, 127)
    return codes.nan_to_num(0.0).to(torch.int8), scale


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``, element by element; equal shapes."""
    return F.silu(gate) * up


def take_row(x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Row ``last[b]`` of each sequence: x [B, S, D], last i64 [B] -> [B, 1, D]."""
    return x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2]))


def expert_linear(x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``x[n, k] @ weight[ids[n, k]].T``: x [N, K, D], or [N, D] for all K alike; weight [E, O, D]; ids i64 [N, K]."""
    rows = x[:, None].expand(-1, ids.shape[1], -1) if x.ndim == 2 else x
    return torch.einsum("nkd,nkod->nko", rows, weight[ids])


def _like_first(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _no_result(*_: object) -> None:
    return None


def _attention_result(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _per_expert(x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*ids.shape, weight.shape[1]))


def _row(x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], 1, x.shape[2]))


_IMPLEMENTATIONS = (
    (rms_norm, _like_first),
    (rope, _like_first),
    (attention, _attention_result),
    (attention_cached, _attention_result),
    (kv_append, _no_result),
    (kv_append_quantised, _no_result),
    (swiglu, _like_first),
    (take_row, _row),
    (expert_linear, _per_expert),
)
for _eager, _fake in _IMPLEMENTATIONS:
    _LIB.impl(_eager.__name__, _eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"anvil::{_eager.__name__}", _fake, lib=_LIB)
