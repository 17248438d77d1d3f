"""What each quantisation mode makes of numbers: the weights and activations a compiled program must compute with.

The rules of the modes, written down once more and apart from any compiler: f32 arithmetic, rounding half to even,
saturation; results are exact in f64. Weights are [N, K], a scale belongs to one output, or to a group of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

_LARGEST_HALF = np.float32(65504)


@dataclass(frozen=True)
class Mode:
    """One mode.

    Args:
        weights: f32 [N, K] -> f64 [N, K], dequantised.
        cost: mean squared error over mean square that normal weights of many inputs show; a result may have a quarter
            to twice as much.
        group: inputs that share a scale; 0 for one scale per output, 1 for none.
        integers: (least, largest) weight, in units of ``unit``, so that a group which holds both is quantised exactly.
        activations: f32 [..., K] -> f64, what rows are rounded to, where a mode rounds them.
        table: the mode of embeddings and output projections, where it is another one.
        tied: the mode of a matrix that is both of these, where it is another one.
    """

    weights: Callable[[np.ndarray], np.ndarray]
    cost: float
    group: int
    integers: tuple[int, int]
    unit: int = 1
    activations: Callable[[np.ndarray], np.ndarray] | None = None
    table: str = ""
    tied: str = ""

    def other(self, *, table: bool, tied: bool) -> str:
        """The mode of such a matrix, if another one."""
        return (tied and self.tied) or (table and self.table) or ""


def quotient(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """x / scale in f32; 0 where it is not finite."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = x / scale.astype(np.float32)
    return np.where(np.isfinite(q), q, np.float32(0))


def grouped(w: np.ndarray, size: int) -> np.ndarray:
    """[N, groups, size], filled up with zeros."""
    n, k = w.shape
    groups = -(-k // size)
    return np.pad(w.astype(np.float32), ((0, 0), (0, groups * size - k))).reshape(n, groups, size)


def by_group(size: int, rule: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A rule for groups [N, groups, size] as one for weights [N, K]."""

    def weights(w: np.ndarray) -> np.ndarray:
        return rule(grouped(w, size)).reshape(len(w), -1)[:, : w.shape[1]] if w.size else w.astype(np.float64)

    return weights


def largest(g: np.ndarray) -> np.ndarray:
    return np.abs(g).max(axis=-1, keepdims=True, initial=0)


def half(x: np.ndarray) -> np.ndarray:
    """Rounded to f16, at most its largest number."""
    return np.minimum(x, _LARGEST_HALF).astype(np.float16)


def half_above(x: np.ndarray) -> np.ndarray:
    """The least f16 that is not below x."""
    near = x.astype(np.float16)
    return np.where(near.astype(np.float32) < x, np.nextafter(near, np.float16(np.inf)), near)


def rounded(g: np.ndarray, scale: np.ndarray, low: int, high: int) -> np.ndarray:
    """scale times integers low .. high."""
    return np.clip(np.rint(quotient(g, scale)), low, high).astype(np.float64) * scale.astype(np.float64)


def per_output(w: np.ndarray) -> np.ndarray:
    """One f32 scale per output, 127 steps to its largest magnitude."""
    w = w.astype(np.float32)
    return rounded(w, largest(w) / np.float32(127), -127, 127)


def per_row(x: np.ndarray) -> np.ndarray:
    """One f32 scale per row (token). A row that is not finite is NaN."""
    x = x.astype(np.float32)
    scale = largest(x) / np.float32(127)
    scale = np.where(np.isfinite(scale), scale, np.float32(np.nan))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = np.nan_to_num(x / scale, nan=0.0, posinf=127.0, neginf=-127.0)
    return np.clip(np.rint(q), -127, 127).astype(np.float64) * scale.astype(np.float64)


def zero_point(g: np.ndarray) -> np.ndarray:
    """scale (code - zero): the group's range, stretched to hold 0, in 15 steps."""
    low, high = np.minimum(g.min(-1, keepdims=True), 0), np.maximum(g.max(-1, keepdims=True), 0)
    scale = half((high - low) / np.float32(15))
    zero = np.clip(np.rint(quotient(-low, scale)), 0, 15)
    codes = np.clip(np.rint(quotient(g, scale)) + zero, 0, 15)
    return (codes - zero).astype(np.float64) * scale.astype(np.float64)


def q4_0(g: np.ndarray) -> np.ndarray:
    """The weight of largest magnitude is -8 steps."""
    peak = np.take_along_axis(g, np.abs(g).argmax(-1)[..., None], -1)
    return rounded(g, (peak / np.float32(-8)).astype(np.float16), -8, 7)


def q4_1(g: np.ndarray) -> np.ndarray:
    """scale code + minimum, both f16."""
    low, high = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
    scale, minimum = ((high - low) / np.float32(15)).astype(np.float16), low.astype(np.float16)
    codes = np.clip(np.rint(quotient(g - minimum.astype(np.float32), scale)), 0, 15)
    return codes.astype(np.float64) * scale.astype(np.float64) + minimum.astype(np.float64)


def shared(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers >= 0 of a block's groups [N, blocks, groups] as an f16 factor times integers 0 .. most."""
    factor = half_above(x.max(-1, keepdims=True) / np.float32(most))
    return factor, np.clip(np.rint(quotient(x, factor)), 0, most)


def q4_k(g: np.ndarray) -> np.ndarray:
    """Eight groups of 32: scale code - minimum, each an integer of 6 bits times a factor of the block."""
    parts = g.reshape(*g.shape[:2], 8, 32)
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    (d, scales), (e, minima) = shared((high - low) / np.float32(15), 63), shared(-low, 63)
    step, offset = ((f.astype(np.float32) * n.astype(np.float32))[..., None] for f, n in ((d, scales), (e, minima)))
    codes = np.clip(np.rint(quotient(parts + offset, step)), 0, 15).astype(np.float64)
    exact_step, exact_offset = (f.astype(np.float64) * n.astype(np.float64) for f, n in ((d, scales), (e, minima)))
    return codes * exact_step[..., None] - exact_offset[..., None]


def q6_k(g: np.ndarray) -> np.ndarray:
    """Sixteen groups of 16: codes -32 .. 31, the scale an integer of 7 bits times a factor of the block."""
    parts = g.reshape(*g.shape[:2], 16, 16)
    d, scales = shared(np.abs(parts).max(-1) / np.float32(31), 127)
    step = (d.astype(np.float32) * scales.astype(np.float32))[..., None]
    codes = np.clip(np.rint(quotient(parts, step)), -32, 31).astype(np.float64)
    return codes * (d.astype(np.float64) * scales.astype(np.float64))[..., None]


def as_type(dtype: type) -> Callable[[np.ndarray], np.ndarray]:
    return lambda w: w.astype(np.float32).astype(dtype).astype(np.float64)


def symmetric(size: int, most: int, least: int) -> Callable[[np.ndarray], np.ndarray]:
    """Groups with an f16 scale, ``most`` steps to their largest magnitude."""
    return by_group(size, lambda g: rounded(g, half(largest(g) / np.float32(most)), least, most))


MODES = {
    "fp16": Mode(as_type(np.float16), 2.8e-8, 1, (-7, 7)),
    "bf16": Mode(as_type(ml_dtypes.bfloat16), 1.8e-6, 1, (-7, 7)),
    "w8": Mode(per_output, 7.6e-5, 0, (-127, 127)),
    "w8a8": Mode(per_output, 1.5e-4, 0, (-127, 127), activations=per_row, table="w8"),
    "w4-g32": Mode(symmetric(32, 7, -8), 9.3e-3, 32, (-7, 7), tied="q8_0"),
    "w4-g128": Mode(symmetric(128, 7, -8), 1.4e-2, 128, (-7, 7), tied="q8_0"),
    "w4-g32z": Mode(by_group(32, zero_point), 7.3e-3, 32, (-7, 8), tied="q8_0"),
    "w4-g128z": Mode(by_group(128, zero_point), 1.1e-2, 128, (-7, 8), tied="q8_0"),
    "q8_0": Mode(symmetric(32, 127, -128), 3.2e-5, 32, (-127, 127)),
    "q4_0": Mode(by_group(32, q4_0), 7.8e-3, 32, (-8, 7), tied="q8_0"),
    "q4_1": Mode(by_group(32, q4_1), 6.5e-3, 32, (0, 15), tied="q8_0"),
    "q4_k": Mode(by_group(256, q4_k), 7.5e-3, 32, (0, 15), unit=63, tied="q8_0"),
    "q6_k": Mode(by_group(256, q6_k), 6e-4, 16, (-31, 31), unit=127),
}
QUANTISED = tuple(MODES)
TABLES = tuple(name for name, mode in MODES.items() if not mode.table)
