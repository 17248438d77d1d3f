"""Elementwise ops of a decoder layer: residual add, gate product, silu, and silu(gate) · up fused."""

import torch
import torch.nn.functional as F

from assay import bounds, reference
from assay.formats import BF16, F16, F32
from assay.metamorphic import THREADS, Property, prefix, scaling
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


def elementwise(
    name: str, module: type[torch.nn.Module], golden, bound, operands: tuple[Operand, ...], **more
) -> OpSpec:
    return OpSpec(
        name=name,
        module=module,
        golden=golden,
        bound=bound,
        operands=operands,
        shapes=SHAPES,
        result="M N",
        cost=TWO if len(operands) > 1 else ONE,
        **more,
    )


def exact(name: str, module: type[torch.nn.Module], golden, *relations: Property) -> OpSpec:
    """One correctly rounded operation, in every type, to the sign of a zero."""
    properties = (THREADS, prefix("M", "N"), *relations)
    signs = {"specials": SPECIALS, "signed_zero": True}
    return elementwise(name, module, golden, bounds.exact, (X, Y), dtypes=TYPES, properties=properties, **signs)


ADD = exact("add", Add, reference.add)
MUL = exact("mul", Mul, reference.mul, scaling("x"))
SILU = elementwise(
    "silu",
    Silu,
    reference.silu,
    bounds.silu,
    (X,),
    dtypes=TYPES,
    specials=SPECIALS,
    properties=(THREADS, prefix("M", "N")),
)
SWIGLU = elementwise(
    "swiglu",
    Swiglu,
    reference.swiglu,
    bounds.swiglu,
    (Operand("gate", "M N"), Operand("up", "M N")),
    properties=(THREADS, prefix("M", "N"), scaling("up")),
)
SPECS = (ADD, MUL, SILU, SWIGLU)
