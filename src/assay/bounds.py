"""Error bounds per element, each derived, each with its source. There is no tolerance anywhere else in assay.

A bound is a function ``(setting, want, *operands) -> float64 array`` of the golden result and the golden's operands.
u is unit roundoff, S the same contraction over absolute values, eta the smallest denormal (one fused multiply-add loses
at most eta/2 to underflow). Sums of K terms lose at most ``gamma(K)·u·S``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from assay import reference
from assay.formats import Format
from assay.reference.attention import seen_by_any, unmasked, visible

#: Fail factor of the statistical bound c·√K·u·S: rounding errors of a sum are nearly independent, and all-positive
#: data, the worst measured, reaches 1.2·√K with PyTorch 2.13 (docs/correctness.md). 4 leaves a factor of three.
SUM_FACTOR = 4.0
#: Zero-mean data keeps partial sums at √k, so the error does not grow with K: 8·u·S held for every K measured.
ZERO_MEAN_FACTOR = 8.0


@dataclass(frozen=True)
class Setting:
    """What a bound needs to know besides the operands.

    ``out`` and ``acc`` are the formats of the result and of sums; ``zero_mean`` says the data was drawn with mean zero;
    ``flushes`` that the target replaces denormal results by zero (declared by the target, never assumed). ``quant`` is
    the mode that linear layers inside a composite are in.
    """

    out: Format
    acc: Format
    zero_mean: bool = False
    flushes: bool = False
    quant: str = "fp32"

    @property
    def eta(self) -> float:
        """Largest absolute loss of one operation near zero."""
        return self.acc.smallest_normal if self.flushes else self.acc.eta

    def rounding(self, want: np.ndarray) -> np.ndarray:
        """One rounding of the result to nearest: u_out·|y| + eta_out/2."""
        return self.out.u * np.abs(want) + 0.5 * self.out.eta

    def gamma(self, terms: int) -> float:
        """Relative loss of a contraction of ``terms`` products against S, in units of u: the least of the valid bounds.

        ``terms`` is the deterministic one (Higham, Accuracy and Stability, §3.1); the others are the factors above.
        """
        return min(terms, root(terms), ZERO_MEAN_FACTOR) if self.zero_mean else min(terms, root(terms))


def root(terms: int) -> float:
    """c·√N: relative loss of a sum of N terms in units of u, statistically."""
    return SUM_FACTOR * float(np.sqrt(terms))


Bound = Callable[..., np.ndarray]


def exact(setting: Setting, want: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """Zero: integers, indices, moved data, and one correctly rounded operation (the comparison rounds the golden)."""
    return np.zeros(want.shape)


def ulps(count: float) -> Bound:
    """``count`` units in the last place of the type sums are carried in, and one rounding where the result is
    narrower: what an elementary function of that accuracy, rounded once, may be off by."""

    def bound(setting: Setting, want: np.ndarray, *operands: np.ndarray, **constants: object) -> np.ndarray:
        rounding = setting.rounding(want) if setting.out.bits < setting.acc.bits else 0.0
        return np.asarray(count * setting.acc.ulp(want) + rounding, np.float64)

    return bound


def linear(setting: Setting, want: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
    """u_out·|y| + gamma(K)·u_acc·S + K·eta, S = |x|·|w|ᵀ + |b|. Uses the accumulator's u: a sum carried in a narrow
    type stays below 4 u of the output and would pass a bound in output units."""
    magnitude = reference.linear(np.abs(x), np.abs(w), None if b is None else np.abs(b))
    terms = x.shape[-1] + (b is not None)
    return setting.rounding(want) + setting.gamma(terms) * setting.acc.u * magnitude + terms * setting.eta


def rms_norm(setting: Setting, want: np.ndarray, x: np.ndarray, w: np.ndarray, *, eps: float) -> np.ndarray:
    """(½·c√D + 4)·u_acc·|y| + u_out·|y| + underflow.

    The sum of squares is all positive and stands under a root, which halves its relative error; 4 covers the division
    by D and the addition of eps (½ each, halved root), root and reciprocal (2), the first product (1). Squares below
    eta vanish: at most D·eta/D of a mean that is at least eps.
    """
    relative = (0.5 * root(x.shape[-1]) + 4.0) * setting.acc.u + setting.out.u
    mean_square = np.mean(x * x, axis=-1, keepdims=True) if x.shape[-1] else np.zeros((*x.shape[:-1], 1))
    vanished = 0.5 * setting.eta / np.maximum(mean_square + eps, setting.eta)
    return (relative + vanished) * np.abs(want) + 2.0 * setting.eta * (1.0 + np.abs(w))


def rope(setting: Setting, want: np.ndarray, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """u_out·|y| + 2·u_acc·(|x·cos| + |rotate(x)·sin|) + 2·eta: two products and one sum, each rounded at most once."""
    half = x.shape[-1] // 2
    swapped = np.concatenate([x[..., half:], x[..., :half]], axis=-1)
    magnitude = np.abs(x * cos[:, None]) + np.abs(swapped * sin[:, None])
    return setting.rounding(want) + 2.0 * setting.acc.u * magnitude + 2.0 * setting.eta


def silu(setting: Setting, want: np.ndarray, x: np.ndarray) -> np.ndarray:
    """4·u_acc·(1 + |x|)·|y| + 4 ulp_acc(y) + one rounding + |x|·smallest normal.

    A 4-ulp exp whose argument may be off by u·|x|, one sum, one division. Tighter than 4·u·|x| + 4 ulp(y) for negative
    x, where y is small. The last term: a sigmoid below the smallest normal number may vanish (exp(−x) overflows).
    """
    relative = 4.0 * setting.acc.u * (1.0 + np.abs(x)) * np.abs(want) + 4.0 * setting.acc.ulp(want)
    return relative + setting.rounding(want) + np.abs(x) * setting.acc.smallest_normal


def swiglu(setting: Setting, want: np.ndarray, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu's bound times |up|, and one rounding of the product.

    In a narrow type that lets silu be rounded before the product, as PyTorch's two operations do, or not.
    """
    return silu(setting, reference.silu(gate), gate) * np.abs(up) + setting.rounding(want) + setting.eta


def softmax(setting: Setting, want: np.ndarray, x: np.ndarray) -> np.ndarray:
    """p·(2·max δ + c√N + 8)·u_acc + u_out·p + smallest normal.

    δ = |x − max| is the error of exp's argument in units of u, over the elements whose weight is not zero; 8 is exp
    (4 ulp) and the division; weights below the smallest normal number may vanish.
    """
    if want.shape[-1] == 0:
        return np.zeros(want.shape)
    shift = np.abs(x - np.max(x, axis=-1, keepdims=True))
    widest = np.where(want > 0, shift, 0.0).max(axis=-1, keepdims=True)
    relative = (2.0 * widest + root(x.shape[-1]) + 8.0) * setting.acc.u
    return (relative + setting.out.u) * want + setting.out.smallest_normal


def attention(
    setting: Setting,
    want: np.ndarray,
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
    """u_out·|o| + [2·scale·c√D·u·max_j Σ|q||k_j| + (c√N + 8)·u]·Σ_j p_j·|v_j| + underflow.

    The bracket is the relative error of the weights: scores off by δ change every weight by at most exp(2δ) − 1 ≈ 2δ.
    The maximum runs over visible keys only. Weights below the smallest normal number may vanish.

    A cap c·tanh(s/c) has slope at most 1, so δ passes through it; the quotient, a tanh of 4 ulp and the product add
    6·u·c. An additive mask m adds one rounding of the sum: u·max(|s| + |m|).
    """
    scale = 1.0 / float(np.sqrt(max(q.shape[-1], 1))) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    seen = visible((q.shape[2], k.shape[2]), past, causal=causal, window=window)[:, None]
    seen = seen if mask is None else seen & unmasked(mask)
    keys = np.where(seen_by_any(seen), np.repeat(np.abs(k), group, axis=1), 0.0)
    size = np.matmul(np.abs(q), keys.swapaxes(-1, -2))
    largest = np.max(np.where(seen, size, 0.0), axis=-1, keepdims=True, initial=0.0)
    score_error = scale * root(q.shape[-1]) * setting.acc.u * largest + 6.0 * setting.acc.u * softcap
    if mask is not None and mask.dtype.kind == "f":
        most = np.max(np.abs(mask), axis=-1, keepdims=True, initial=0.0, where=np.isfinite(mask))
        score_error = score_error + setting.acc.u * (scale * largest + most)
    relative = 2.0 * score_error + (root(k.shape[2]) + 8.0) * setting.acc.u
    magnitude = reference.attention(
        q, k, np.abs(v), past, scale=scale, causal=causal, window=window, softcap=softcap, mask=mask
    )
    floor = k.shape[2] * setting.acc.smallest_normal * (1.0 + largest_value(v))
    return setting.rounding(want) + np.expm1(relative) * magnitude + floor


def largest_value(v: np.ndarray) -> float:
    """Largest finite |v|: what a weight that vanished below the smallest normal number can have contributed."""
    return float(np.max(np.abs(v), initial=0.0, where=np.isfinite(v)))
