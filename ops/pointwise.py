"""Elementwise ops of a decoder layer: residual add, gate product, silu, and silu(gate) · up fused."""

import torch
import torch.nn.functional as F

from assay import bounds, reference
from assay.formats import BF16, F16, F32
from assay.metamorphic import THREADS, prefix, scaling
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles


class Add(torch.nn.Module):
    def forward(self, x, y):
        return x + y


class Mul(torch.nn.Module):
    def forward(self, x, y):
        return x * y


class Silu(torch.nn.Module):
    def forward(self, x):
        return F.silu(x)


class Swiglu(torch.nn.Module):
    def forward(self, gate, up):
        return F.silu(gate) * up


SHAPES = Shapes(free={"M": around_tiles(), "N": around_tiles(100)}, size=lambda d: 8 * d["M"] * d["N"])
ONE = Cost(lambda d: d["M"] * d["N"], lambda d, size: 2 * size * d["M"] * d["N"])
TWO = Cost(lambda d: d["M"] * d["N"], lambda d, size: 3 * size * d["M"] * d["N"])
X, Y = Operand("x", "M N"), Operand("y", "M N")
#: The narrow types compute in float32 and round once, which for one operation is the correctly rounded result.
TYPES = (F32, F16, BF16)
SPECIALS = ("zeros", "denormal", "infinite", "nan", "extreme")

ADD = OpSpec(
    name="add",
    module=Add,
    golden=reference.add,
    bound=bounds.exact,
    operands=(X, Y),
    shapes=SHAPES,
    result="M N",
    dtypes=TYPES,
    cost=TWO,
    specials=SPECIALS,
    signed_zero=True,
    properties=(THREADS, prefix("M", "N")),
)
MUL = OpSpec(
    name="mul",
    module=Mul,
    golden=reference.mul,
    bound=bounds.exact,
    operands=(X, Y),
    shapes=SHAPES,
    result="M N",
    dtypes=TYPES,
    cost=TWO,
    specials=SPECIALS,
    signed_zero=True,
    properties=(THREADS, prefix("M", "N"), scaling("x")),
)
SILU = OpSpec(
    name="silu",
    module=Silu,
    golden=reference.silu,
    bound=bounds.silu,
    operands=(X,),
    shapes=SHAPES,
    result="M N",
    dtypes=TYPES,
    cost=ONE,
    specials=SPECIALS,
    properties=(THREADS, prefix("M", "N")),
)
SWIGLU = OpSpec(
    name="swiglu",
    module=Swiglu,
    golden=reference.swiglu,
    bound=bounds.swiglu,
    operands=(Operand("gate", "M N"), Operand("up", "M N")),
    shapes=SHAPES,
    result="M N",
    cost=TWO,
    properties=(THREADS, prefix("M", "N"), scaling("up")),
)
SPECS = (ADD, MUL, SILU, SWIGLU)
