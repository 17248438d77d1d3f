"""rms_norm: y = x · w / √(mean(x²) + eps), written as models write it."""

from functools import partial

import torch

from assay import bounds, reference
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles, span

EPS = 1e-5


class RMSNorm(torch.nn.Module):
    def forward(self, x, w):
        variance = x.pow(2).mean(-1, keepdim=True)
        return w * (x * torch.rsqrt(variance + EPS))


RMS_NORM = OpSpec(
    name="rms_norm",
    module=RMSNorm,
    golden=partial(reference.rms_norm, eps=EPS),
    bound=partial(bounds.rms_norm, eps=EPS),
    operands=(Operand("x", "B S D"), Operand("w", "D", role="weight")),
    shapes=Shapes(free={"B": span(0, 3), "S": span(0, 9), "D": around_tiles(64, 100)}),
    result="B S D",
    cost=Cost(lambda d: 4 * d["B"] * d["S"] * d["D"], lambda d, size: 2 * size * d["B"] * d["S"] * d["D"]),
    properties=(THREADS, prefix("B", "S")),
)
SPECS = (RMS_NORM,)
