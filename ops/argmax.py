"""argmax over the last axis: the lowest index wins a tie, the first NaN wins over everything."""

import torch

from assay import bounds, reference
from assay.formats import I64
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles, choice


class Argmax(torch.nn.Module):
    def forward(self, x):
        return torch.argmax(x, dim=-1)


ARGMAX = OpSpec(
    name="argmax",
    module=Argmax,
    golden=reference.argmax,
    bound=bounds.exact,
    operands=(Operand("x", "M N"),),
    shapes=Shapes(free={"M": around_tiles(), "N": choice(1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100, 257)}),
    result="M",
    cost=Cost(lambda d: d["M"] * d["N"], lambda d, size: size * d["M"] * d["N"]),
    values=("normal", "tied", "equal", "one_hot", "wide"),
    specials=("zeros", "denormal", "infinite", "nan", "negative_infinite_rows", "extreme"),
    out=I64,
    properties=(
        THREADS,
        prefix("M"),
    ),
)
SPECS = (ARGMAX,)
