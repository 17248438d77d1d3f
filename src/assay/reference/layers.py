"""Goldens of a decoder layer's parts, written once on an ``Analysis`` so that value and bound come out together.

Letters: B batch, S tokens, E model size, H query heads, K key heads, D head size, F inner size of the MLP.
Weights lie as PyTorch holds them, [out, in].
"""

from __future__ import annotations

import numpy as np

from assay.analysis import Analysis, Bounded


def heads(x: Bounded, size: int) -> Bounded:
    """[B, S, H·D] → [B, H, S, D]."""
    return x.moved(lambda a: a.reshape(*a.shape[:2], a.shape[2] // size, size).swapaxes(1, 2))


def attention_block(
    run: Analysis,
    x: Bounded,
    cos: np.ndarray,
    sin: np.ndarray,
    norm: np.ndarray,
    wq: np.ndarray,
    wk: np.ndarray,
    wv: np.ndarray,
    wo: np.ndarray,
    *,
    eps: float,
) -> Bounded:
    """o(attention(rope(q(n)), rope(k(n)), v(n))) of n = rms_norm(x), causal: [B, S, E] → [B, S, E]."""
    size = cos.shape[-1]
    n = run.rms_norm(x, norm, eps=eps)
    q = run.rope(heads(run.linear(n, wq), size), cos, sin)
    k = run.rope(heads(run.linear(n, wk), size), cos, sin)
    v = heads(run.linear(n, wv), size)
    o = run.attention(q, k, v, np.zeros(len(x.value), int))
    return run.linear(o.moved(lambda a: a.swapaxes(1, 2).reshape(*x.value.shape[:2], len(wq))), wo)


def mlp(run: Analysis, x: Bounded, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> Bounded:
    """down(silu(gate(x)) · up(x)): [B, S, E] → [B, S, E]."""
    return run.linear(run.swiglu(run.linear(x, gate), run.linear(x, up)), down)


def decoder_layer(
    run: Analysis,
    x: Bounded,
    cos: np.ndarray,
    sin: np.ndarray,
    norm: np.ndarray,
    wq: np.ndarray,
    wk: np.ndarray,
    wv: np.ndarray,
    wo: np.ndarray,
    norm_after: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
    *,
    eps: float,
) -> Bounded:
    """h = x + attention_block(x); h + mlp(rms_norm(h))."""
    h = run.add(x, attention_block(run, x, cos, sin, norm, wq, wk, wv, wo, eps=eps))
    return run.add(h, mlp(run, run.rms_norm(h, norm_after, eps=eps), gate, up, down))
