"""erf."""

from __future__ import annotations

from anvil.kernels.dsl import Val, const, fma, lesser, magnitude, select, with_sign
from anvil.kernels.mathlib.exponential import exp
from anvil.kernels.mathlib.polynomial import horner

# erf(x) / x - 1 in powers of x^2 on |x| <= 1; error of erf 0.02 u
_NEAR = (0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806903e-05)
# -log(1 - erf(x)) on 1 <= x <= 3.95, beyond which erf rounds to 1; error of erf 0.02 u
_FAR = (0.00034154434, 1.1270891, 0.63814485, 0.10310678, -0.02183809, 0.0029476648, -0.00018637946)
_ONE_FROM = 3.95


def erf(x: Val) -> Val:
    """An odd polynomial up to 1, 1 - e^-q(|x|) beyond."""
    size = magnitude(x)
    near = fma(size, horner(size * size, _NEAR), size)
    far = 1.0 - exp(-horner(lesser(const(_ONE_FROM, x.type), size), _FAR))
    return with_sign(select(size < 1.0, near, far), x)


FUNCTIONS = {"erf": erf}
