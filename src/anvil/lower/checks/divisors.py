"""Integers divided by zero: the kernel gives 0 and does not trap, the run ends with the error PyTorch raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTE
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from anvil.dtypes import mlir_name
from anvil.errors import DivisionByZeroError
from anvil.graph.describe import describe_node
from anvil.graph.rewrite import argument
from anvil.lower.checks.flags import emit_flag
from anvil.lower.generic.num import FLOATS, Num, compare
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.sizes import product

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten

#: Divisions that stay whole numbers where their operands are.
DIVISIONS = frozenset(
    {
        aten.floor_divide.default,
        aten.floor_divide.Scalar,
        aten.remainder.Tensor,
        aten.remainder.Scalar,
        aten.remainder.Scalar_Tensor,
        aten.fmod.Tensor,
        aten.fmod.Scalar,
        aten.div.Tensor_mode,
        aten.div.Scalar_mode,
    }
)


def emit_divisor_checks(low: Lowering, node: Node) -> None:
    """A row and a check, unless the numbers are floats or the divisor is a number other than zero."""
    if node.target not in DIVISIONS or (dtype := _computed_in(node)) in FLOATS:
        return
    divisor = argument(node, "other")
    if isinstance(divisor, (int, float)) and divisor != 0:
        return
    shape = low.shape(node)
    key = ("divisor", divisor, dtype, shape)
    if key in low.checked:
        return
    low.checked.add(key)

    def flags(region: Region, operand: Operand) -> Value:
        results = region.scalar(product(shape), "i64")  # nothing is divided where there is no result

        def is_zero(y: Num, count: Num) -> Num:
            return compare("eq", y.to(dtype), 0) & compare("ne", count, 0)

        return region.map(is_zero, [operand, results], operand.shape, "i1")

    message = f"{describe_node(node)}: a divisor in {divisor} is 0, expected none"
    emit_flag(low, node, divisor, flags, message, DivisionByZeroError)


def _computed_in(node: Node) -> str:
    """The type PyTorch computes in; a quotient that is not rounded is a float."""
    if node.kwargs.get("rounding_mode", "floor") is None:
        return "f32"
    values = [argument(node, name) for name in ("self", "other")]
    fakes = [value.meta["val"] if isinstance(value, Node) else value for value in values]
    return mlir_name(elementwise_dtypes(*fakes, type_promotion_kind=PROMOTE.DEFAULT)[0])
