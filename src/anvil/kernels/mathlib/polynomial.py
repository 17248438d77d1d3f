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


def in_pairs(x: Val, coefficients: Sequence[float]) -> Val:
    """The same of an even number of coefficients, as a polynomial in x^2 of c[0] + c[1] x, c[2] + c[3] x, ...: half as
    long a chain (Estrin's scheme, one level of it)."""
    square = x * x
    *pairs, result = [
        fma(x, const(odd, x.type), const(even, x.type))
        for even, odd in zip(coefficients[::2], coefficients[1::2], strict=True)
    ]
    for pair in reversed(pairs):
        result = fma(result, square, pair)
    return result
