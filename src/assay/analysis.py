"""Running error analysis: the fp64 golden of a composite, carrying for every element a bound on the compiled error.

Each step adds its own rounding bound (``assay.bounds``) to what its inputs' errors can do to it. So the bound of a
layer is derived like that of an op. Products of two errors are kept where they can matter (norm, attention) and
dropped where they are below u times the bound. After Wilkinson; Higham, Accuracy and Stability, §3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from assay import bounds, reference
from assay.bounds import Setting
from assay.reference.attention import seen_by_any, visible
from assay.reference.quantise import MODES


@dataclass(frozen=True)
class Bounded:
    """A float64 ``value`` and, per element, the largest absolute ``error`` of the compiled one."""

    value: np.ndarray
    error: np.ndarray

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Bounded:
        """Reshaped, transposed, sliced: whatever moves elements and computes nothing."""
        return Bounded(move(self.value), move(self.error))


@dataclass(frozen=True)
class Analysis:
    """The operations of a layer on :class:`Bounded` values; every intermediate is rounded to the accumulator's type."""

    setting: Setting

    @classmethod
    def inside(cls, setting: Setting) -> Analysis:
        """For intermediates of a program judged under ``setting``: nothing is known of their mean."""
        return cls(replace(setting, out=setting.acc, zero_mean=False))

    def exact(self, x: np.ndarray) -> Bounded:
        """An input: no error yet."""
        return Bounded(x, np.zeros(x.shape))

    def add(self, x: Bounded, y: Bounded) -> Bounded:
        """e_x + e_y, and one rounding."""
        value = reference.add(x.value, y.value)
        return Bounded(value, x.error + y.error + self.setting.acc.u * np.abs(value))

    def linear(self, x: Bounded, w: np.ndarray) -> Bounded:
        """|w| e_x, and the sum's own bound. In a quantisation mode, of what the mode makes of x and w."""
        mode = MODES.get(self.setting.quant)
        if mode is not None:
            w = mode.weights(w)
            x = x if mode.activations is None else self.rounded_rows(x, mode.activations)
        value = reference.linear(x.value, w)
        own = bounds.linear(self.setting, value, x.value, w)
        if mode is not None:  # weights are rounded to f32 once
            own = own + self.setting.acc.u * reference.linear(np.abs(x.value), np.abs(w))
        return Bounded(value, own + reference.linear(x.error, np.abs(w)))

    def rounded_rows(self, x: Bounded, rule: Callable[[np.ndarray], np.ndarray]) -> Bounded:
        """Rows rounded to multiples of their scale, a 127th of the largest magnitude.

        With ρ the relative error of that magnitude, a result is off by |x̂|·ρ as its scale is, and by one step of the
        scale where x lies so near a tie (within e/scale + |x|/scale·ρ steps, and 4 u for the division) that the
        compiled one may fall to the other side.
        """
        value = rule(x.value)
        most = np.abs(x.value).max(axis=-1, keepdims=True, initial=0.0)
        scale = np.maximum(most / 127.0, self.setting.eta)
        rho = x.error.max(axis=-1, keepdims=True, initial=0.0) / np.maximum(most, self.setting.eta)
        rho = rho + 2.0 * self.setting.acc.u
        steps = np.abs(x.value) / scale
        doubt = x.error / scale + steps * (rho + 2.0 * self.setting.acc.u)
        jumps = np.abs(steps - np.floor(steps) - 0.5) <= doubt
        return Bounded(value, np.abs(value) * rho + np.where(jumps, np.ceil(2.0 * doubt) * scale * (1.0 + rho), 0.0))

    def rms_norm(self, x: Bounded, w: np.ndarray, *, eps: float) -> Bounded:
        """With r the root of the golden and ρ the most its error can be: |w|·(e/(r − ρ) + |x|·ρ/(r·(r − ρ))).

        The mean square is off by at most q = mean(2|x|e + e²), so ρ ≤ q/(r + √max(r² − q, eps)).
        """
        value = reference.rms_norm(x.value, w, eps=eps)
        square = np.mean(x.value**2, axis=-1, keepdims=True) + eps
        shift = np.mean(2.0 * np.abs(x.value) * x.error + x.error**2, axis=-1, keepdims=True)
        least = np.sqrt(np.maximum(square - shift, eps))
        rho = shift / (np.sqrt(square) + least)
        inherited = np.abs(w) * (x.error / least + np.abs(x.value) * rho / (np.sqrt(square) * least))
        return Bounded(value, inherited + bounds.rms_norm(self.setting, value, x.value, w, eps=eps))

    def rope(self, x: Bounded, cos: np.ndarray, sin: np.ndarray) -> Bounded:
        """|cos| e + |sin| e of the partner, and the rotation's own bound."""
        value = reference.rope(x.value, cos, sin)
        half = x.error.shape[-1] // 2
        partner = np.concatenate([x.error[..., half:], x.error[..., :half]], axis=-1)
        inherited = x.error * np.abs(cos[:, None]) + partner * np.abs(sin[:, None])
        return Bounded(value, inherited + bounds.rope(self.setting, value, x.value, cos, sin))

    def swiglu(self, gate: Bounded, up: Bounded) -> Bounded:
        """silu has slope at most 1.1: (1.1·e_gate)(|up| + e_up) + |silu(gate)|·e_up, and its own bound."""
        value = reference.swiglu(gate.value, up.value)
        inherited = 1.1 * gate.error * (np.abs(up.value) + up.error) + np.abs(reference.silu(gate.value)) * up.error
        return Bounded(value, inherited + bounds.swiglu(self.setting, value, gate.value, up.value))

    def attention(
        self,
        q: Bounded,
        k: Bounded,
        v: Bounded,
        past: np.ndarray,
        *,
        scale: float | None = None,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Bounded:
        """Scores off by at most δ change each weight by a factor within exp(±2δ): expm1(2δ)·Σp|v| + exp(2δ)·Σp·e_v.

        δ is the largest over the visible keys of scale·(|q|·e_k + e_q·|k| + e_q·e_k); a soft cap, whose slope is at
        most 1, lets it pass.
        """
        rule = {"scale": scale, "window": window, "softcap": softcap}
        value = reference.attention(q.value, k.value, v.value, past, **rule)
        growth = 2.0 * score_error(q, k, past, window, scale)
        magnitude = reference.attention(q.value, k.value, np.abs(v.value), past, **rule)
        errors = reference.attention(q.value, k.value, v.error, past, **rule)
        inherited = np.expm1(growth) * magnitude + np.exp(growth) * errors
        own = bounds.attention(self.setting, value, q.value, k.value, v.value, past, **rule)
        return Bounded(value, inherited + own)


def score_error(q: Bounded, k: Bounded, past: np.ndarray, window: int = 0, scale: float | None = None) -> np.ndarray:
    """[B, H, S, 1]: largest error of a visible score that the errors of q and k cause."""
    group = q.value.shape[1] // k.value.shape[1]
    mask = visible((q.value.shape[2], k.value.shape[2]), past, window=window)[:, None]
    used = seen_by_any(mask)

    def keys(x: np.ndarray) -> np.ndarray:
        return np.where(used, np.repeat(np.abs(x), group, axis=1), 0.0).swapaxes(-1, -2)

    error = (np.abs(q.value) + q.error) @ keys(k.error) + q.error @ keys(k.value)
    scale = q.value.shape[-1] ** -0.5 if scale is None else scale
    return np.max(np.where(mask, error, 0.0), axis=-1, keepdims=True, initial=0.0) * scale
