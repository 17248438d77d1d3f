"""Goldens of the ops that work row by row on the last axis."""

from __future__ import annotations

import numpy as np


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
    """y[..., n] = Σ_k x[..., k] · w[n, k] + b[n]."""
    y = np.matmul(x, w.T)
    return y if b is None else y + b


def embedding(ids: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y[..., d] = w[ids[...], d]."""
    return w[ids]


def rms_norm(x: np.ndarray, w: np.ndarray, *, eps: float) -> np.ndarray:
    """y = x · w / √(mean(x²) + eps), the mean over the last axis; eps inside the root, unscaled."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True) if x.shape[-1] else np.zeros((*x.shape[:-1], 1))
    return x * w / np.sqrt(mean_square + eps)


def softmax(x: np.ndarray) -> np.ndarray:
    """y = exp(x − max) / Σ exp(x − max) over the last axis. A row of −Inf alone is NaN, as in PyTorch."""
    if x.shape[-1] == 0:
        return x.copy()
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


def argmax(x: np.ndarray) -> np.ndarray:
    """Index of the largest element of the last axis; the lowest index wins a tie, the first NaN wins over all."""
    return np.argmax(x, axis=-1)
