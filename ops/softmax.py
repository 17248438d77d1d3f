"""softmax over the last axis."""

import torch

from assay import bounds, reference
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles


class Softmax(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


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
    properties=(THREADS, prefix("M")),
)
SPECS = (SOFTMAX,)
