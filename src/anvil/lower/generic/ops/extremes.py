"""Where the largest or smallest element is: the first of equals, the first NaN before everything."""

from __future__ import annotations

import torch

from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num, compare, highest, select
from anvil.lower.generic.ops.reduction import accumulator, dims_of
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Combine, Value
from anvil.lower.sizes import dense_strides
from anvil.lower.values import Tensor
from anvil.runtime.plan import View

aten = torch.ops.aten


def _positions(value: Value, dims: list[int]) -> Tensor:
    """The number of each element among those that ``dims`` run over, counted in row-major order."""
    inner = dense_strides([value.shape[dim] for dim in dims])
    strides = tuple(inner[dims.index(dim)] if dim in dims else 0 for dim in range(len(value.shape)))
    shape = tuple(size if dim in dims else 1 for dim, size in enumerate(value.shape))
    return Tensor(View("", 0, shape, strides), "i64", lambda position: position)


def _with_index(region: Region, call: Call, combine: Combine) -> tuple[Value, Value]:
    """The extreme element and its position: the smallest position of an element that equals it, or is NaN."""
    operand = call["self"]
    value = region.convert(operand, accumulator(operand.dtype))
    dims = dims_of(call, operand)
    keep = bool(call.arguments.get("keepdim", False))
    extreme = region.reduce(combine, [value], dims, keepdim=True)

    def place(x: Num, best: Num, position: Num) -> Num:
        found = compare("eq", x, best)
        if x.is_float:
            found = found | compare("ne", x, x)
        return select(found, position, position.const(highest("i64")))

    candidates = region.map(place, [value, extreme, _positions(value, dims)], value.shape, "i64")
    index = region.reduce("min", [candidates], dims, keepdim=True)
    kept = [dim for dim in range(len(value.shape)) if keep or dim not in dims]
    left = [extreme.shape[dim] for dim in kept]
    extreme = region.convert(extreme, operand.dtype)
    return extreme.remap(kept, left), index.remap(kept, left)


def _index_of(combine: Combine) -> Build:
    return lambda region, call: _with_index(region, call, combine)[1]


def _both(combine: Combine) -> Build:
    return lambda region, call: _with_index(region, call, combine)


OPS: dict[object, Build] = {
    aten.argmax.default: _index_of("max"),
    aten.argmin.default: _index_of("min"),
    aten.max.dim: _both("max"),
    aten.min.dim: _both("min"),
}
