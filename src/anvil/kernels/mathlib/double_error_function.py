"""erf and erfc in f64."""

from __future__ import annotations

from anvil.kernels.dsl import Val, const, fma, lesser, magnitude, select, with_sign
from anvil.kernels.mathlib.double_exponential import exp
from anvil.kernels.mathlib.polynomial import horner

# erf(x) / x - 1 in powers of x^2 on |x| <= 1; error of erf 0.001 u
_NEAR = (
    0.1283791670955126, -0.37612638903183754, 0.11283791670955126, -0.026866170645131218, 0.005223977625441674,
    -0.0008548327023403001, 0.00012055332978879483, -1.4925650236967501e-05, 1.6462110782018636e-06,
    -1.636576864883207e-07, 1.4806027146128752e-08, -1.2277734486795524e-09, 9.323723518153027e-11,
    -6.1967364287877e-12, 2.8067128195611264e-13,
)  # fmt: skip
# (1 + 2x) e^(x^2) erfc(x) in powers of (x - 4) / (x + 4) on 0.49 <= x <= 28; error of erfc 0.001 u
_FAR = (
    1.2329951186255526, -0.1396211168405625, 0.015379652102620038, 0.06809705425469147, -0.10103906603632491,
    0.09373283499840082, -0.06633036581165254, 0.03716751553652642, -0.016197734065864212, 0.005031969987459255,
    -0.0007577732207239143, -0.0001992567487950228, 0.00015062131725868596, -2.43990288168954e-05,
    -1.1220804525267996e-05, 5.709353434271496e-06, 2.9107927765423137e-07, -8.250015198935833e-07,
    7.85508630260157e-08, 1.0989405349948876e-07, -2.1369247075620634e-08, -1.423055791099251e-08,
    3.5005363585504147e-09, 1.3750746942824206e-09, -3.1938666656483857e-10,
)  # fmt: skip
_END = 27.5  # beyond this erfc is 0


def _tail(size: Val) -> Val:
    """erfc of 0.49 and more: e^(-x^2), its square in two parts, times a polynomial."""
    x = lesser(const(_END, size.type), size)
    square = x * x
    lost = fma(x, x, -square)
    decay = exp(-square)
    decay = fma(decay, -lost, decay)
    return decay * (horner((x - 4.0) / (x + 4.0), _FAR) / fma(x, const(2.0, x.type), const(1.0, x.type)))


def _near(x: Val) -> Val:
    return fma(x, horner(x * x, _NEAR), x)


def erf(x: Val) -> Val:
    size = magnitude(x)
    return with_sign(select(size < 1.0, _near(size), 1.0 - _tail(size)), x)


def erfc(x: Val) -> Val:
    """1 - erf(x) below 1/2, the tail above, 2 less the tail far below 0."""
    size = magnitude(x)
    tail = _tail(size)
    return select(size < 0.5, 1.0 - _near(x), select(x < 0.0, 2.0 - tail, tail))


DOUBLE = {"erf": erf, "erfc": erfc}
