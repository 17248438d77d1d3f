"""Attention of any type and mask, in products and a softmax; what the attention kernels take does not come here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q · kᵀ · scale + mask) · v, held in f32 for f16 and bf16; a query that sees no key gives zeros."""
    if dropout_p:
        return NotImplemented
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    return _attend(q, k, v, attn_mask, _causal(q, k) if is_causal else None, scale)


def _causal(q: Tensor, k: Tensor) -> Tensor:
    """bool [S, T]: query s sees keys up to s."""
    return torch.arange(k.shape[-2])[None, :] <= torch.arange(q.shape[-2])[:, None]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seen: Tensor | None, scale: float) -> Tensor:
    dtype, wide = q.dtype, torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
    scores = torch.matmul(q.to(wide), k.to(wide).transpose(-2, -1)) * scale
    for allowed in (seen, mask):
        if allowed is not None and allowed.dtype == torch.bool:
            scores = torch.where(allowed, scores, -torch.inf)
        elif allowed is not None:
            scores = scores + allowed.to(wide)
    blind = scores.amax(-1, keepdim=True) == -torch.inf
    weights = torch.where(blind, 0.0, torch.softmax(scores, -1))
    return torch.matmul(weights, v.to(wide)).to(dtype)


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """With the logarithm of each row's sum, which inference does not use, as PyTorch shapes it."""
    result = _attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
    if result is NotImplemented:
        return result
    return result, q.new_zeros([q.shape[0], q.shape[2], q.shape[1]], dtype=torch.float32).transpose(1, 2)


DECOMPOSITIONS = {
    aten.scaled_dot_product_attention.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash,
}
