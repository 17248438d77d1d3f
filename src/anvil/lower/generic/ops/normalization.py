"""Layer normalisation over the last dimensions."""

from __future__ import annotations

import torch

from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num, const, function
from anvil.lower.generic.ops.reduction import accumulator, divided
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Value

aten = torch.ops.aten


def _layer_norm(region: Region, call: Call) -> Value:
    """(x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias. The mean is subtracted before squares are taken:
    E[x²] - E[x]² cancels where the mean is large."""
    x, count = call["input"], len(call["normalized_shape"])
    dims = list(range(len(x.shape) - count, len(x.shape)))
    wide = accumulator(call.dtype)
    value = region.convert(x, wide)
    sizes = [x.shape[dim] for dim in dims]
    mean = divided(region, region.reduce("sum", [value], dims, keepdim=True), sizes, wide)
    centred = region.map(lambda v, m: v - m, [value, mean], x.shape, wide)
    square = region.map(lambda c: c * c, [centred], x.shape, wide)
    variance = divided(region, region.reduce("sum", [square], dims, keepdim=True), sizes, wide)
    affine = [call[name] for name in ("weight", "bias")]

    def element(c: Num, v: Num, *rest: Num) -> Num:
        given = iter(rest)
        scaled = c * function("rsqrt", v + const(call["eps"], wide))
        if affine[0] is not None:
            scaled = scaled * next(given).to(wide)
        if affine[1] is not None:
            scaled = scaled + next(given).to(wide)
        return scaled.to(call.dtype)

    operands = [centred, variance, *(tensor for tensor in affine if tensor is not None)]
    return region.map(element, operands, call.shape, call.dtype)


OPS: dict[object, Build] = {aten.layer_norm.default: _layer_norm}
