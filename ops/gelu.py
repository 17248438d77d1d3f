"""gelu: y = x · Φ(x), in the exact form (erf) and the tanh approximation."""

import numpy as np
import torch
import torch.nn.functional as F
from scipy import special

from assay.bounds import Setting
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles

#: Beyond this, float32's erf is ±1 and the result x or −0: the error must not grow with |x|.
SATURATED = 6.0


class Gelu(torch.nn.Module):
    def forward(self, x):
        return F.gelu(x)


class GeluTanh(torch.nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


def gelu(x: np.ndarray) -> np.ndarray:
    """x · Φ(x), Φ the normal distribution function: erfc keeps the negative tail, where 1 + erf cancels."""
    return x * 0.5 * special.erfc(-x / np.sqrt(2.0))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(−2u)), u = √(2/π)·(x + 0.044715·x³): ½·x·(1 + tanh u) without its cancellation."""
    u = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-2.0 * u))


def bound(setting: Setting, want: np.ndarray, x: np.ndarray) -> np.ndarray:
    """4·u_acc·min(|x|, 6) + 4 ulp(y): 1 + erf cancels to an absolute error of u, which x multiplies until erf is −1."""
    return 4.0 * setting.acc.u * np.minimum(np.abs(x), SATURATED) + 4.0 * setting.out.ulp(want)


def known(title: str, x: list[float], right: list[float]) -> Known:
    return Known(title, (np.array([x], np.float32),), np.array([right]), digits=5e-6, repeat="M")


TAIL = known("near the tail", [-5.533907, -5.531643, -0.0], [-8.66541e-08, -8.77443e-08, -0.0])
FAR = [-4, -6, -9, -1000, -65504]
KNOWN = (TAIL, known("far from zero", FAR, [-1.26685e-04, -5.91953e-09, -1.01573e-18, -0.0, -0.0]))
KNOWN_TANH = (known("far from zero", FAR, [-7.02459e-05, -8.43965e-11, -1.33646e-28, -0.0, -0.0]),)


def spec(name: str, module: type[torch.nn.Module], golden, rows: tuple[Known, ...]) -> OpSpec:
    return OpSpec(
        name=name,
        module=module,
        golden=golden,
        bound=bound,
        operands=(Operand("x", "M N"),),
        shapes=Shapes(free={"M": around_tiles(), "N": around_tiles(100)}, size=lambda d: 8 * d["M"] * d["N"]),
        result="M N",
        cost=Cost(lambda d: 8 * d["M"] * d["N"], lambda d, size: 2 * size * d["M"] * d["N"]),
        specials=("zeros", "denormal", "infinite", "nan", "extreme"),
        known=rows,
        properties=(THREADS, prefix("M", "N")),
    )


SPECS = (spec("gelu", Gelu, gelu, KNOWN), spec("gelu_tanh", GeluTanh, gelu_tanh, KNOWN_TANH))
