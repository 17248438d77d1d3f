"""Variances, norms, logsumexp: reductions of several steps in one loop nest."""

from __future__ import annotations

from math import inf

import torch

from anvil.lower.generic.call import Build, Call, broadcast
from anvil.lower.generic.num import Num, compare, function, magnitude, maximum, select
from anvil.lower.generic.ops.reduction import accumulator, dims_of, divided
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.sizes import product

aten = torch.ops.aten


def _moments(region: Region, call: Call, correction: float) -> tuple[Value, Value]:
    """(variance, mean) in the accumulator's type, dimensions kept. The mean is subtracted before squares are taken."""
    operand, dims = call["self"], dims_of(call, call["self"])
    wide = accumulator(call.dtype)
    value = region.convert(operand, wide)
    sizes = [value.shape[dim] for dim in dims]
    mean = divided(region, region.reduce("sum", [value], dims, keepdim=True), sizes, wide)
    square = region.map(lambda x, m: (x - m) * (x - m), [value, mean], broadcast([value.shape, mean.shape]), wide)
    total = region.reduce("sum", [square], dims, keepdim=True)
    count = region.scalar(product(sizes), "i64")

    def over(s: Num, n: Num) -> Num:
        return s / maximum(n.to(wide) - float(correction), 0.0)

    return region.map(over, [total, count], total.shape, wide), mean


def _dropped(region: Region, call: Call, value: Value, dims: list[int]) -> Value:
    """``value`` as the result of the call: its type, and without the reduced dimensions unless they are kept."""
    kept = [dim for dim in range(len(value.shape)) if call.arguments.get("keepdim", False) or dim not in dims]
    return region.convert(value, call.dtype).remap(kept, [value.shape[dim] for dim in kept])


def _correction(call: Call) -> float:
    if "unbiased" in call.arguments:
        return 1.0 if call["unbiased"] else 0.0
    correction = call.arguments.get("correction")
    return 1.0 if correction is None else float(correction)


def _statistic(*, root: bool, mean: bool) -> Build:
    def build(region: Region, call: Call) -> Value | tuple[Value, ...]:
        variance, average = _moments(region, call, _correction(call))
        if root:
            variance = region.map(lambda v: function("sqrt", v), [variance], variance.shape, variance.dtype)
        dims = dims_of(call, call["self"])
        found = _dropped(region, call, variance, dims)
        return (found, _dropped(region, call, average, dims)) if mean else found

    return build


def _logsumexp(region: Region, call: Call) -> Value:
    """m + log Σ e^(x - m), m the largest, or 0 where that is infinite."""
    operand, dims = call["self"], dims_of(call, call["self"])
    value = region.convert(operand, accumulator(call.dtype))

    def finite(m: Num) -> Num:
        return select(compare("eq", magnitude(m), inf), m.const(0.0), m)

    top = region.reduce("max", [value], dims, keepdim=True)
    top = region.map(finite, [top], top.shape, top.dtype)
    shape = broadcast([value.shape, top.shape])
    weight = region.map(lambda x, m: function("exp", x - m), [value, top], shape, value.dtype)
    total = region.reduce("sum", [weight], dims, keepdim=True)
    found = region.map(lambda m, s: m + function("log", s), [top, total], total.shape, value.dtype)
    return _dropped(region, call, found, dims)


def norm(region: Region, call: Call, operand: Operand, order: float, dims: list[int]) -> Value:
    """(Σ |x|^p)^(1/p); the largest or smallest for p = ±Inf, how many are not 0 for p = 0."""
    wide = accumulator(call.dtype)
    value = region.convert(operand, wide)
    if order in (inf, -inf):
        size = region.map(magnitude, [value], value.shape, wide)
        return _dropped(region, call, region.reduce("max" if order > 0 else "min", [size], dims, keepdim=True), dims)

    def term(x: Num) -> Num:
        if order == 0:
            return compare("ne", x, 0.0).to(wide)
        if order == 1:
            return magnitude(x)
        return x * x if order == 2 else function("powf", magnitude(x), x.const(order))

    total = region.reduce("sum", [region.map(term, [value], value.shape, wide)], dims, keepdim=True)

    def root(s: Num) -> Num:
        if order in (0, 1):
            return s
        return function("sqrt", s) if order == 2 else function("powf", s, s.const(1.0 / order))

    return _dropped(region, call, region.map(root, [total], total.shape, wide), dims)


def _vector_norm(region: Region, call: Call) -> Value:
    return norm(region, call, call["self"], float(call["ord"]), dims_of(call, call["self"]))


def _norm(region: Region, call: Call) -> Value:
    order = call.arguments.get("p")
    return norm(region, call, call["self"], 2.0 if order is None else float(order), dims_of(call, call["self"]))


OPS: dict[object, Build] = {
    **{
        op: _statistic(root=name.startswith("std"), mean=name.endswith("mean"))
        for name in ("var", "std", "var_mean", "std_mean")
        for op in (getattr(getattr(aten, name), overload) for overload in ("default", "dim", "correction"))
    },
    aten.logsumexp.default: _logsumexp,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.norm.Scalar: _norm,
    aten.norm.ScalarOpt_dim: _norm,
    aten.norm.ScalarOpt_dim_dtype: _norm,
    aten.norm.ScalarOpt_dtype: _norm,
}
