"""linear: y = x · wᵀ (+ b), the matrix product of every projection. One row is a GEMV, many a GEMM."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from assay import bounds, reference
from assay.metamorphic import PACKED_PLAIN, THREADS, prefix, scaling
from assay.quantised import QUANTISED, linear_in_mode
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles


class Linear(torch.nn.Module):
    def forward(self, x, w, b=None):
        return F.linear(x, w, b)


def flops(d: Dims) -> int:
    return 2 * d["M"] * d["N"] * d["K"]


def integers(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    """K · 31 · 31 < 2^24 for every K drawn: each partial sum is an integer that float32 holds."""
    return rng.integers(-31, 32, (d["M"], d["K"])), rng.integers(-31, 32, (d["N"], d["K"]))


def integers_and_bias(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    return *integers(rng, d), rng.integers(-1000, 1000, (d["N"],))


def ones(n: int) -> Known:
    """The accumulator starts at b, not at zero and not at what memory held: n + 1 everywhere."""
    one = np.ones((n, n), np.float32)
    return Known(f"{n}x{n} of ones plus one", (one, one, one[0]), np.full((n, n), n + 1.0))


def transposed_identity() -> Known:
    """x.t() @ I for x[i, j] = 8i + j is 8j + i, to the bit."""
    x = np.arange(64, dtype=np.float32).reshape(8, 8).T
    return Known("a transpose times the identity", (x, np.eye(8, dtype=np.float32)), x.astype(np.float64))


SHAPES = Shapes(
    free={"M": around_tiles(), "N": around_tiles(), "K": around_tiles(64, 300)},
    size=lambda d: flops(d) + 20 * (d["M"] * d["K"] + d["N"] * d["K"]),
)
COST = Cost(flops, lambda d, size: size * (d["M"] * d["K"] + d["N"] * d["K"] + d["M"] * d["N"]))
X, W, B = Operand("x", "M K"), Operand("w", "N K", role="weight"), Operand("b", "N")

LINEAR = OpSpec(
    name="linear",
    module=Linear,
    golden=reference.linear,
    bound=bounds.linear,
    operands=(X, W),
    shapes=SHAPES,
    result="M N",
    cost=COST,
    exact=integers,
    known=(transposed_identity(),),
    properties=(THREADS, PACKED_PLAIN, prefix("M"), scaling("x")),
    quants=("fp32", *QUANTISED),
    quantised=partial(linear_in_mode, (X, W), (THREADS, prefix("M"), scaling("x"))),
)
LINEAR_BIAS = OpSpec(
    name="linear_bias",
    module=Linear,
    golden=reference.linear,
    bound=bounds.linear,
    operands=(X, W, B),
    shapes=SHAPES,
    result="M N",
    cost=COST,
    exact=integers_and_bias,
    known=tuple(ones(n) for n in (4, 5, 17)),
    properties=(THREADS, PACKED_PLAIN, prefix("M")),
    quants=("fp32", *QUANTISED),
    quantised=partial(linear_in_mode, (X, W, B), (THREADS, prefix("M"))),
)
SPECS = (LINEAR, LINEAR_BIAS)
