"""matmul, addmm, bmm: products of two operands that are both data, so neither may be repacked before a call."""

import numpy as np
import torch

from assay import bounds
from assay.metamorphic import THREADS, prefix, scaling
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles, span


class Matmul(torch.nn.Module):
    def forward(self, x, y):
        return x @ y


class Addmm(torch.nn.Module):
    def forward(self, c, x, y):
        return torch.addmm(c, x, y)


class Bmm(torch.nn.Module):
    def forward(self, x, y):
        return torch.bmm(x, y)


def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Σ_k x[..., m, k] · y[..., k, n]."""
    return np.matmul(x, y)


def addmm(c: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """c + x · y."""
    return c + np.matmul(x, y)


def bound(setting: bounds.Setting, want: np.ndarray, x: np.ndarray, y: np.ndarray, c: float | np.ndarray = 0.0):
    """As ``bounds.linear``: u_out·|y| + gamma(K + 1)·u_acc·S + (K + 1)·eta."""
    terms = x.shape[-1] + 1
    magnitude = np.matmul(np.abs(x), np.abs(y)) + np.abs(c)
    return setting.out.u * np.abs(want) + setting.gamma(terms) * setting.acc.u * magnitude + terms * setting.eta


def addmm_bound(setting: bounds.Setting, want: np.ndarray, c: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As ``bound``, the accumulator starting at c."""
    return bound(setting, want, x, y, c)


def integers(rng: np.random.Generator, *shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """K · 31 · 31 < 2^24 for every K drawn."""
    return tuple(rng.integers(-31, 32, shape) for shape in shapes)


def flops(d: Dims) -> int:
    return 2 * d.get("B", 1) * d["M"] * d["N"] * d["K"]


SIZES = {"M": around_tiles(), "N": around_tiles(), "K": around_tiles(100)}
COST = Cost(flops, lambda d, size: size * (d["M"] * d["K"] + d["N"] * d["K"] + d["M"] * d["N"]))
X, Y, C = Operand("x", "M K"), Operand("y", "K N"), Operand("c", "M N")


def ones(n: int) -> Known:
    """C of ones plus A·B of ones: n + 1 everywhere, C must be added."""
    one = np.ones((n, n), np.float32)
    return Known(f"{n}x{n} of ones plus ones", (one, one, one), np.full((n, n), n + 1.0))


def identity() -> Known:
    x = np.arange(64, dtype=np.float32).reshape(8, 8).T
    return Known("a transpose times the identity", (x, np.eye(8, dtype=np.float32)), x.astype(np.float64))


SPECS = (
    OpSpec(
        name="matmul",
        module=Matmul,
        golden=matmul,
        bound=bound,
        operands=(X, Y),
        shapes=Shapes(free=SIZES, size=lambda d: 2 * flops(d)),
        result="M N",
        cost=COST,
        exact=lambda rng, d: integers(rng, (d["M"], d["K"]), (d["K"], d["N"])),
        known=(identity(),),
        properties=(THREADS, prefix("M", "N"), scaling("x"), scaling("y")),
    ),
    OpSpec(
        name="addmm",
        module=Addmm,
        golden=addmm,
        bound=addmm_bound,
        operands=(C, X, Y),
        shapes=Shapes(free=SIZES, size=lambda d: 2 * flops(d)),
        result="M N",
        cost=COST,
        exact=lambda rng, d: integers(rng, (d["M"], d["N"]), (d["M"], d["K"]), (d["K"], d["N"])),
        known=tuple(ones(n) for n in (4, 5, 17)),
        properties=(THREADS, prefix("M", "N")),
    ),
    OpSpec(
        name="bmm",
        module=Bmm,
        golden=matmul,
        bound=bound,
        operands=(Operand("x", "B M K"), Operand("y", "B K N")),
        shapes=Shapes(free={"B": span(0, 3), **SIZES}, size=lambda d: 2 * flops(d)),
        result="B M N",
        cost=COST,
        exact=lambda rng, d: integers(rng, (d["B"], d["M"], d["K"]), (d["B"], d["K"], d["N"])),
        properties=(THREADS, prefix("B", "M", "N"), scaling("x")),
    ),
)
