"""Golden of attention with grouped heads, causal frontier, window and soft cap, and of the cache it reads."""

from __future__ import annotations

import numpy as np


def visible(shape: tuple[int, int], past: np.ndarray, *, causal: bool = True, window: int = 0) -> np.ndarray:
    """bool [B, S, T]: query s of row b sees key j iff j ≤ past[b] + s, and, with a window, j > past[b] + s − window."""
    queries, keys = shape
    position = past[:, None, None] + np.arange(queries)[:, None]
    key = np.arange(keys)
    mask = key <= position if causal else np.ones((len(past), queries, keys), bool)
    return mask & (key > position - window) if window else mask


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    past: np.ndarray,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """o[b,h,s] = Σ_j softmax_j(cap(scale · q·k_j)) · v_j over the visible keys j.

    Zeros where no key is visible, and where every visible score is −Inf (PyTorch's fused op; its softmax alone gives
    NaN there).

    Head h reads key head h // (H / Hkv): every key head is repeated in place. Hidden keys are left out, not weighted
    by zero, so what they hold (NaN, stale slots) cannot reach the result.

    Args:
        q: [B, H, S, D].
        k: [B, Hkv, T, D].
        v: [B, Hkv, T, D].
        past: int [B], keys before the first query.
        scale: 1/√D if not given.
        mask: broadcasts to [B, H, S, T]. int: a key is visible where it is not 0; float: added to the scores after the
            cap, and a key is hidden where it is −Inf.
    """
    scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    seen = visible((q.shape[2], k.shape[2]), past, causal=causal, window=window)[:, None]
    seen = seen if mask is None else seen & unmasked(mask)
    scores = scale * np.matmul(q, np.where(seen_by_any(seen), k, 0.0).swapaxes(-1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and mask.dtype.kind == "f":
        scores = scores + mask
    return weigh(scores, seen, v)


def unmasked(mask: np.ndarray) -> np.ndarray:
    """Where a mask lets a key be seen."""
    return mask != -np.inf if mask.dtype.kind == "f" else mask != 0


def seen_by_any(mask: np.ndarray) -> np.ndarray:
    """[B, 1, T, 1]: keys that at least one query sees."""
    return np.expand_dims(mask.any(axis=-2), -1)


def weigh(scores: np.ndarray, mask: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax over the visible scores, times v: [B, H, S, D]."""
    scores = np.where(mask, scores, -np.inf)
    highest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    nothing = highest == -np.inf
    weights = np.exp(scores - np.where(nothing, 0.0, highest))
    share = weights / np.where(nothing, 1.0, np.sum(weights, axis=-1, keepdims=True))
    if np.isfinite(v).all():
        return np.matmul(share, v)
    terms = np.where(mask[..., None], share[..., None] * v[:, :, None], 0.0)
    return terms.sum(axis=-2)


def kv_append(cache: np.ndarray, new: np.ndarray, past: np.ndarray) -> np.ndarray:
    """The cache [B, H, C, D] with new [B, H, S, D] stored at slots past[b] … past[b] + S − 1, all else untouched."""
    result = cache.copy()
    for row, first in enumerate(past):
        result[row, :, first : first + new.shape[2]] = new[row]
    return result
