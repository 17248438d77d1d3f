"""Goldens of the elementwise ops."""

from __future__ import annotations

import numpy as np


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y. The sum of two numbers of at most 24 bits can need more than 53: add's golden is rounded twice then.

    A double rounding moves a result only if the float64 sum lies exactly on a tie of the narrow format; float64 has
    more than 2·24 + 1 bits, for which double rounding of a sum is proven harmless (Figueroa 1995).
    """
    return x + y


def mul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x · y, exact in float64 for factors of at most 26 bits."""
    return x * y


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(−x)); the limit −0 at −Inf is NaN here and in PyTorch (−Inf · 0)."""
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-x))


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) · up."""
    return silu(gate) * up
