"""Polynomial evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from anvil.kernels.dsl import Val, const, fma


def horner(x: Val, coefficients: Sequence[float]) -> Val:
    """c[0] + c[1] x + c[2] x^2 + ..., each step one fused multiply-add."""
    result = const(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, const(coefficient, x.type))
    return result
