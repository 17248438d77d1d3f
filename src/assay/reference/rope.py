"""Golden of rotary position embedding, half-split pairing (j, j + D/2), and the angles a model feeds it."""

from __future__ import annotations

import numpy as np


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """y = x · cos + rotate(x) · sin, where rotate([a | b]) = [−b | a] on the two halves of the last axis.

    Args:
        x: [B, H, S, D], D even.
        cos: [B or 1, S, D], both halves given.
        sin: [B or 1, S, D].
    """
    half = x.shape[-1] // 2
    rotated = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos[:, None] + rotated * sin[:, None]


def rope_angles(positions: np.ndarray, dim: int, base: float = 10000.0) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin), each [..., D]: angle of pair j at position p is p · base^(−2j/D), both halves alike."""
    frequency = base ** (-np.arange(0, dim, 2) / max(dim, 1))
    angle = positions[..., None] * frequency
    angle = np.concatenate([angle, angle], axis=-1)
    return np.cos(angle), np.sin(angle)
