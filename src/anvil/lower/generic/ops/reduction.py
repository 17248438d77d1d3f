"""Sums, means, extremes over dimensions, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anvil.lower.generic.call import Build, Call, broadcast
from anvil.lower.generic.num import Num, function
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Combine, Operand, Value
from anvil.lower.sizes import product
from anvil.runtime.plan import Size

aten = torch.ops.aten
_ACCUMULATOR = {"f16": "f32", "bf16": "f32"}


def accumulator(dtype: str) -> str:
    """The type sums are held in."""
    return _ACCUMULATOR.get(dtype, dtype)


def dims_of(call: Call, operand: Operand, name: str = "dim") -> list[int]:
    """The dimensions an op reduces, counted from the front; none given means all."""
    rank = len(operand.shape)
    given = call.arguments.get(name)
    given = [given] if isinstance(given, int) else given
    return sorted({dim % rank for dim in given}) if given else list(range(rank))


def _fold(combine: Combine) -> Build:
    def build(region: Region, call: Call) -> Value:
        operand = call["self"]
        dtype = "i1" if combine in ("any", "all") else accumulator(call.dtype)
        value = region.convert(operand, dtype)  # to bool: != 0
        keep = bool(call.arguments.get("keepdim", False))
        total = region.reduce(combine, [value], dims_of(call, operand), keep)
        return region.convert(total, call.dtype)

    return build


def _mean(region: Region, call: Call) -> Value:
    operand = call["self"]
    dims = dims_of(call, operand)
    value = region.convert(operand, accumulator(call.dtype))
    total = region.reduce("sum", [value], dims, bool(call.arguments.get("keepdim", False)))
    return divided(region, total, [operand.shape[dim] for dim in dims], call.dtype)


def divided(region: Region, total: Value, sizes: Sequence[Size], dtype: str) -> Value:
    """``total`` over the number of elements, in the type of ``total``; the result as ``dtype``."""
    count = region.scalar(product(sizes), "i64")
    return region.map(lambda x, n: (x / n.to(x.dtype)).to(dtype), [total, count], total.shape, dtype)


def softmax(region: Region, operand: Operand, dim: int, dtype: str) -> Value:
    """e^(x - max) / Σ e^(x - max) along ``dim``. A NaN reaches every element through the sum, so the maximum need not
    look for it; the sum is at least 1, and its reciprocal costs one rounding of the result."""
    value = region.convert(operand, accumulator(dtype))
    dim %= max(len(value.shape), 1)
    dims = [dim] if value.shape else []
    top = region.reduce("top", [value], dims, keepdim=True)
    shape = broadcast([value.shape, top.shape])
    weight = region.map(lambda x, m: function("exp", x - m), [value, top], shape, value.dtype)
    total = region.reduce("sum", [weight], dims, keepdim=True)
    share = region.map(lambda s: 1.0 / s, [total], total.shape, value.dtype)
    return region.map(lambda e, s: (e * s).to(dtype), [weight, share], shape, dtype)


def _softmax(region: Region, call: Call) -> Value:
    return softmax(region, call["self"], call["dim"], call.dtype)


def log_softmax(region: Region, operand: Operand, dim: int, dtype: str) -> Value:
    """(x - max) - log Σ e^(x - max) along ``dim``."""
    value = region.convert(operand, accumulator(dtype))
    dims = [dim % len(value.shape)] if value.shape else []
    top = region.reduce("max", [value], dims, keepdim=True)
    weight = region.map(lambda x, m: function("exp", x - m), [value, top], value.shape, value.dtype)
    total = region.reduce("sum", [weight], dims, keepdim=True)

    def element(x: Num, m: Num, s: Num) -> Num:
        return ((x - m) - function("log", s)).to(dtype)

    return region.map(element, [value, top, total], value.shape, dtype)


OPS: dict[object, Build] = {
    aten.sum.default: _fold("sum"),
    aten.sum.dim_IntList: _fold("sum"),
    aten.prod.default: _fold("prod"),
    aten.prod.dim_int: _fold("prod"),
    aten.amax.default: _fold("max"),
    aten.amin.default: _fold("min"),
    aten.max.default: _fold("max"),
    aten.min.default: _fold("min"),
    aten.any.default: _fold("any"),
    aten.any.dim: _fold("any"),
    aten.any.dims: _fold("any"),
    aten.all.default: _fold("all"),
    aten.all.dim: _fold("all"),
    aten.all.dims: _fold("all"),
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.softmax.int: _softmax,
    aten._softmax.default: _softmax,
    aten.log_softmax.int: lambda region, call: log_softmax(region, call["self"], call["dim"], call.dtype),
    aten._log_softmax.default: lambda region, call: log_softmax(region, call["self"], call["dim"], call.dtype),
}
