"""Attention as PyTorch spells it: any number of keys, masks of both kinds, fewer key heads than query heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from assay.bounds import Setting, root
from assay.overloads.spec import Form, Given, Overload

SIZES = {"S": (1, 2, 7, 16, 17, 33), "T": (1, 2, 7, 16, 17, 33)}  # with no key a row of softmax has no maximum
QKV = (Given("M 4 S 6"), Given("M 4 T 6"), Given("M 4 T 6"))
GROUPED = (Given("M 4 S 6"), Given("M 2 T 6"), Given("M 2 T 6"))


def weights(q, k, mask=None, is_causal=False, scale=None, enable_gqa=False):
    """softmax of scores [M, H, S, T]: zeros where a query sees nothing."""
    k = np.repeat(k, q.shape[1] // k.shape[1], 1)
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    shares = np.exp(scores - np.where(np.isfinite(top), top, 0))
    return shares / np.maximum(shares.sum(-1, keepdims=True), np.finfo(np.float64).tiny)


def attention(q, k, v, mask=None, **options):
    return weights(q, k, mask, **options) @ np.repeat(v, q.shape[1] // v.shape[1], 1)


def bound(setting: Setting, want, q, k, v, mask=None, scale=None, **options) -> np.ndarray:
    """The bound of ``assay.bounds.attention``, with one rounding of the masked score beside."""
    shares = weights(q, k, mask, scale=scale, **options)
    keys, values = (np.abs(np.repeat(x, q.shape[1] // x.shape[1], 1)) for x in (k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.abs(q) @ np.swapaxes(keys, -1, -2) * factor
    added = 0 if mask is None or mask.dtype == bool else np.abs(mask).max(initial=0)
    error = 2 * (root(q.shape[-1]) + 2) * scores.max(-1, keepdims=True) + 2 * added + root(k.shape[-2]) + 8
    return np.asarray(setting.rounding(want) + error * setting.acc.u * (shares @ values) + setting.eta, np.float64)


def form(title: str, *tensors: Given, **kwargs: Any) -> Form:
    return Form(title, tensors, (), kwargs)


FORMS = (
    form("all keys", *QKV),
    form("causal", *QKV, is_causal=True),
    form("scale", *QKV, scale=0.5),
    form("bool mask", *QKV, Given("S T", "bool")),
)


def flash(op: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, **options: Any) -> Any:
    return op(q, k, v, attn_mask=mask, **options)[0]


CHECKED = {"bound": bound, "kinds": ("ordinary",), "sizes": SIZES}

OVERLOADS = (
    Overload(
        "aten.scaled_dot_product_attention.default",
        attention,
        (*FORMS, form("additive mask", *QKV, Given("S T")), form("grouped", *GROUPED, enable_gqa=True)),
        **CHECKED,
    ),
    Overload(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        attention,
        (*FORMS[:3], form("additive mask", *QKV, Given("S T"))),
        call=flash,
        fatal=dict.fromkeys("ST", "it divides by the number of its blocks: SIGFPE"),
        **CHECKED,
    ),
)
