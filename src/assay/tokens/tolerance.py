"""How far two runs' log-probabilities may lie apart, and which of a golden's tokens no such distance can turn."""

from __future__ import annotations

import numpy as np

from assay.errors import UsageError

# Measured on first green builds; the type is the one the residual stream is computed in.
FLOOR = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.15}
ULP_BITS = {"fp32": 23, "fp16": 10, "bf16": 7}


def tau(quant: str, top_logit: np.ndarray) -> np.ndarray:
    """Allowed error of a log-probability, in nats: max(4 ulp of the top logit, the floor of the type).

    The 4 ulp cover the rounding of the logits themselves, which grows with their size; the floor covers the
    rounding of everything before. ``top_logit`` is [...], the result too.
    """
    if quant not in FLOOR:
        raise UsageError(f"log-probability tolerance of quant={quant!r}: not known; known: {', '.join(FLOOR)}")
    exponent = np.floor(np.log2(np.maximum(np.abs(top_logit), 2.0**-126)))
    ulp = 2.0 ** (exponent - ULP_BITS[quant])
    return np.maximum(4 * ulp, FLOOR[quant])


def certified(margins: np.ndarray, allowed: np.ndarray) -> int:
    """How many leading tokens have a top-2 margin above twice the allowed error: rounding cannot turn any of them."""
    weak = np.flatnonzero(margins <= 2 * allowed)
    return int(weak[0]) if weak.size else len(margins)
