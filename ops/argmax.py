"""argmax over the last axis: the lowest index wins a tie, the first NaN wins over everything."""

import numpy as np
import torch

from assay import bounds, reference
from assay.formats import I64
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles, choice


class Argmax(torch.nn.Module):
    def forward(self, x):
        return torch.argmax(x, dim=-1)


def known(title: str, x: list[list[float]], right: list[int]) -> Known:
    return Known(title, (np.array(x, np.float32),), np.array(right), repeat="M")


KNOWN = (
    known("a NaN wins over numbers", [[np.nan, 4.6151]], [0]),
    known("a NaN in the middle", [[2, np.nan, 7]], [1]),
    known("the first of two NaN", [[1, np.nan, np.nan], [np.nan, np.nan, 0]], [1, 0]),
    known("the first of equals", [[5, -3], [5, 7], [7, 7], [-100, 7]], [0, 1, 0, 1]),
    known("nothing but -Inf", [[-np.inf, -np.inf, -np.inf]], [0]),
)
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
    known=KNOWN,
    out=I64,
    properties=(
        THREADS,
        prefix("M"),
    ),
)
SPECS = (ARGMAX,)
