"""How far two runs' log-probabilities may lie apart, and which of a golden's tokens no such distance can turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.errors import UsageError

# Measured on first green builds; the type is the one the residual stream is computed in.
FLOOR = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.15, "w8a8": 0.25}
ULP_BITS = {"fp32": 23, "fp16": 10, "bf16": 7, "w8a8": 10}
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "w8a8": 2.0**-24}


@dataclass(frozen=True)
class Limits:
    """How far a distribution may move: Kullback-Leibler divergence in nats, and the share of equal first choices."""

    kl_mean: float
    kl_p999: float
    same_top1: float
    kl_least: float = 0.0  # less says that the mode was silently not applied


SAME = {
    "fp32": Limits(1e-8, 1e-6, 1.0),
    "fp16": Limits(1e-4, 3e-3, 0.995),
    "bf16": Limits(1e-4, 3e-3, 0.995),
    "w8a8": Limits(1e-4, 3e-3, 0.995),
}


@dataclass(frozen=True)
class Mode:
    """What is expected of a quantisation mode.

    ``stream`` says whose roundings a compiled model may differ by from a golden of the same mode: those of float32
    where only weights are quantised; where activations are, a tie may fall either way, which moves a code by one of its
    127 steps. ``cost`` is what the mode may cost against the fp32 golden; None where it costs nothing.
    """

    stream: str = "fp32"
    cost: Limits | None = None

    @property
    def rounds_activations(self) -> bool:
        """Whether runs that are right part at rounding ties, so that float64 bounds modules and not the whole run."""
        return self.stream == "w8a8"

    def certified_tokens(self, wanted: int) -> int:
        """How many tokens of a prompt must be certified where ``wanted`` are for fp32.

        0 where ties may fall either way: how far that carries is the model's, and no margin need be that wide.
        """
        return 0 if self.rounds_activations else wanted


_HALF = Limits(1e-4, 3e-3, 0.995, 1e-10)
_EIGHT = Limits(1e-3, np.inf, 0.985, 1e-7)
_FOUR = Limits(2e-2, np.inf, 0.94, 1e-5)

MODES = {
    "fp32": Mode(),
    "bf16": Mode(cost=_HALF),
    "fp16": Mode(cost=_HALF),
    "w8": Mode(cost=_EIGHT),
    "w8a8": Mode("w8a8", _EIGHT),
    "q8_0": Mode(cost=_EIGHT),
    "q6_k": Mode(cost=_EIGHT),
    "q4_0": Mode(cost=_FOUR),
    "q4_1": Mode(cost=_FOUR),
    "q4_k": Mode(cost=_FOUR),
    "w4-g32": Mode(cost=_FOUR),
    "w4-g32z": Mode(cost=_FOUR),
    "w4-g128": Mode(cost=_FOUR),
    "w4-g128z": Mode(cost=_FOUR),
}


def mode(quant: str) -> Mode:
    """What is expected of mode ``quant``. Raises :class:`UsageError` for one that nothing is known of."""
    if quant not in MODES:
        raise UsageError(f"tolerance of quant={quant!r}: not known; known: {', '.join(MODES)}")
    return MODES[quant]


def tau(quant: str, top_logit: np.ndarray) -> np.ndarray:
    """Allowed error of a log-probability, in nats: max(4 ulp of the top logit, the floor of the type).

    The 4 ulp cover the rounding of the logits themselves, which grows with their size; the floor covers the
    rounding of everything before. ``top_logit`` is [...], the result too.
    """
    stream = mode(quant).stream
    exponent = np.floor(np.log2(np.maximum(np.abs(top_logit), 2.0**-126)))
    ulp = 2.0 ** (exponent - ULP_BITS[stream])
    return np.maximum(4 * ulp, FLOOR[stream])


def certified(margins: np.ndarray, allowed: np.ndarray) -> int:
    """How many leading tokens have a top-2 margin above twice the allowed error: rounding cannot turn any of them."""
    weak = np.flatnonzero(~(margins > 2 * allowed))  # of NaN too
    return int(weak[0]) if weak.size else len(margins)
