"""rms_norm: y = x · w / √(mean(x²) + eps), written as models write it."""

from functools import partial

import numpy as np
import torch

from assay import bounds, reference
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles, span

EPS = 1e-5


class RMSNorm(torch.nn.Module):
    def forward(self, x, w):
        variance = x.pow(2).mean(-1, keepdim=True)
        return w * (x * torch.rsqrt(variance + EPS))


def spike_and_zeros() -> Known:
    """Row 0: 0.01 and one 1000; row 1: zeros. eps is added to the mean square, unscaled, and keeps row 1 at zero."""
    x = np.zeros((1, 2, 64), np.float32)
    x[0, 0] = 0.01
    x[0, 0, 5] = 1e3
    right = np.zeros((1, 2, 64))
    right[0, 0] = 8.0e-05
    right[0, 0, 5] = 8.0
    return Known("one spike, and a zero row", (x, np.ones(64, np.float32)), right, digits=1e-6, repeat="B")


def small_values() -> Known:
    """x = ±0.058, D = 32: 0.058/√(0.058² + 1e-5) = ±0.998517."""
    x = 0.058 * np.where(np.arange(32) % 2, -1.0, 1.0).astype(np.float32)
    right = np.sign(x) * 0.998517
    return Known("small values beside eps", (x[None, None], np.ones(32, np.float32)), right[None, None], 1e-6, "B")


RMS_NORM = OpSpec(
    name="rms_norm",
    module=RMSNorm,
    golden=partial(reference.rms_norm, eps=EPS),
    bound=partial(bounds.rms_norm, eps=EPS),
    operands=(Operand("x", "B S D"), Operand("w", "D", role="weight")),
    shapes=Shapes(free={"B": span(0, 3), "S": span(0, 9), "D": around_tiles(64, 100)}),
    result="B S D",
    cost=Cost(lambda d: 4 * d["B"] * d["S"] * d["D"], lambda d, size: 2 * size * d["B"] * d["S"] * d["D"]),
    known=(spike_and_zeros(), small_values()),
    properties=(THREADS, prefix("B", "S")),
)
SPECS = (RMS_NORM,)
