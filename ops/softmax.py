"""softmax over the last axis."""

import numpy as np
import torch

from assay import bounds, reference
from assay.formats import F32
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles


class Softmax(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


class ScaledSoftmax(torch.nn.Module):
    def forward(self, x, scale):
        return torch.softmax(x * scale, dim=-1)


def product(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """x · scale, ±Inf where float32 overflows: an overflow there is part of the meaning."""
    exact = x * scale
    return np.where(np.isinf(F32.round(exact)), np.copysign(np.inf, exact), exact)


def scaled(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """softmax(x · scale)."""
    return reference.softmax(product(x, scale))


def scaled_bound(setting: bounds.Setting, want: np.ndarray, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """softmax's bound on the product; a product is off by one rounding, which changes a weight by 2·u·max|x·scale|."""
    scores = product(x, scale)
    inherited = 2.0 * setting.acc.u * np.max(np.abs(scores), axis=-1, keepdims=True, initial=0.0) * want
    return bounds.softmax(setting, want, scores) + inherited


INFINITY = np.inf
BLOCKED = np.array([[-INFINITY] * 4 + [1, 2, 3, 4]], np.float32)
MERGED = np.array([[0, 0, 0, 0, 0.0320586, 0.0871443, 0.2368828, 0.6439143]])
KNOWN = (
    Known("the first block holds nothing but -Inf", (BLOCKED,), MERGED, digits=2e-6, repeat="M"),
    Known("nothing but -Inf is NaN", (np.full((1, 5), -INFINITY, np.float32),), np.full((1, 5), np.nan), repeat="M"),
)
OVERFLOWED = Known(
    "a product that overflows to -Inf is NaN: the scale may not move behind the maximum",
    (np.full((1, 10), -1e38, np.float32), np.array([1e38], np.float32)),
    np.full((1, 10), np.nan),
    repeat="M",
)

SOFTMAX = OpSpec(
    name="softmax",
    module=Softmax,
    golden=reference.softmax,
    bound=bounds.softmax,
    operands=(Operand("x", "M N"),),
    shapes=Shapes(free={"M": around_tiles(), "N": around_tiles(100)}),
    result="M N",
    cost=Cost(lambda d: 5 * d["M"] * d["N"], lambda d, size: 2 * size * d["M"] * d["N"]),
    specials=("zeros", "denormal", "infinite", "nan", "negative_infinite_rows"),
    known=KNOWN,
    properties=(THREADS, prefix("M")),
)
SCALED_SOFTMAX = OpSpec(
    name="scaled_softmax",
    module=ScaledSoftmax,
    golden=scaled,
    bound=scaled_bound,
    operands=(Operand("x", "M N"), Operand("scale", "L")),
    shapes=Shapes(free={"M": around_tiles(), "N": around_tiles(100)}, static=({"L": 1},)),
    result="M N",
    cost=SOFTMAX.cost,
    values=("normal", "positive", "wide", "equal"),
    specials=("zeros", "denormal", "infinite", "nan", "negative_infinite_rows", "extreme"),
    known=(OVERFLOWED,),
    properties=(THREADS, prefix("M")),
)
SPECS = (SOFTMAX, SCALED_SOFTMAX)
