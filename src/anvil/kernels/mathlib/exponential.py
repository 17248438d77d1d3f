"""exp, and what is built on it: sigmoid, silu, tanh."""

from __future__ import annotations

from anvil.kernels.dsl import Val, const, fma, greater, lesser, magnitude, select, with_sign
from anvil.kernels.mathlib.polynomial import horner, in_pairs

# (e^r - 1 - r) / r^2 on |r| <= ln(2)/2; error of e^r 0.002 u (one degree less shows as a bias)
_EXP = (0.5, 0.16666666, 0.041666463, 0.008333571, 0.0013935101, 0.00019739587)
# (tanh(x) - x) / x^3 in powers of x^2 on |x| <= 0.63; error of tanh 0.08 u
_TANH = (-0.33333278, 0.13331321, -0.05372913, 0.02060324, -0.0056636217)
_LOG2_E = 1.44269504
_LN2_HIGH, _LN2_LOW = 0.693147182, -1.90465421e-9
# Adding 1.5 * 2^23 rounds to an integer n, held in the low bits; 2 * 127, even, is twice the bias of an exponent
_ROUND = 12582912.0 + 254.0
_EXP_MIN, _EXP_MAX = -104.0, 89.0  # beyond these e^x rounds to 0 and to infinity


def exp(x: Val) -> Val:
    """e^x = 2^n e^r with r = x - n ln 2.

    What rounding 1 + r loses is added back with the polynomial (error 0.55 ulp), and the power of two is applied in
    two halves, so that denormal results round once. Whatever does not wait for the polynomial is done beside it: a
    loop of exponentials is as fast as its longest chain.
    """
    bounded = greater(const(_EXP_MIN, x.type), lesser(const(_EXP_MAX, x.type), x))
    shifted = fma(bounded, const(_LOG2_E, x.type), const(_ROUND, x.type))
    biased = shifted.bits("i32")  # shifting by 23 drops all but the low 9 bits
    half = biased >> 1
    one_half, other_half = (half << 23).bits("f32"), ((biased - half) << 23).bits("f32")
    n = shifted - _ROUND
    r_high = fma(n, const(-_LN2_HIGH, x.type), bounded)  # exact
    r_low = n * -_LN2_LOW
    r = r_high + r_low
    one_plus = r_high + 1.0
    lost = r_high - (one_plus - 1.0)
    rest = fma(r * r, in_pairs(r, _EXP), lost + r_low)
    return fma(rest, one_half, one_plus * one_half) * other_half


def sigmoid(x: Val) -> Val:
    """1 / (1 + e^-x), from e^-|x| so that neither end overflows and tiny results keep their digits."""
    decay = exp(-magnitude(x))
    return select(x < 0.0, decay, const(1.0, x.type)) / (decay + 1.0)


def silu(x: Val) -> Val:
    """x sigmoid(x). Like PyTorch's, NaN at -Inf."""
    return x * sigmoid(x)


def tanh(x: Val) -> Val:
    """An odd polynomial near 0, 1 - 2 / (e^2|x| + 1) elsewhere."""
    size = magnitude(x)
    square = x * x
    near = fma(size * square, horner(square, _TANH), size)
    far = 1.0 - 2.0 / (exp(size + size) + 1.0)
    return with_sign(select(size < 0.625, near, far), x)


FUNCTIONS = {"exp": exp, "sigmoid": sigmoid, "silu": silu, "tanh": tanh}
