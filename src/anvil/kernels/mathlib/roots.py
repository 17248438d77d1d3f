"""rsqrt. Square root and division are exact operations, so two roundings are all the error there is."""

from __future__ import annotations

from anvil.kernels.dsl import Val, sqrt


def rsqrt(x: Val) -> Val:
    """1 / sqrt(x): Inf at +0, -Inf at -0, NaN below."""
    return 1.0 / sqrt(x)


FUNCTIONS = {"rsqrt": rsqrt}
DOUBLE = {"rsqrt": rsqrt}
