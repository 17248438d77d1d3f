"""Convolution in any number of dimensions: one fused multiply-add per term, terms in order of channel and kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num, select
from anvil.lower.generic.ops.indexing import reading
from anvil.lower.generic.ops.reduction import accumulator
from anvil.lower.generic.picking import Formula, Index, filled, join_loops, pick, quotient_by_size, rest_by_size
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.runtime.plan import Size

aten = torch.ops.aten


def _convolution(region: Region, call: Call) -> Value:
    """x [N, C, *I], weight [K, C / groups, *W] (transposed: [C, K / groups, *W]) -> [N, K, *O].

    Sums run over [C / groups, *W], in f32 for f16 and bf16.
    """
    x, weight, wide = call["input"], call["weight"], accumulator(call.dtype)
    spatial = len(call.shape) - 2
    kernel = weight.shape[2:]
    inner = x.shape[1] // call["groups"]  # channels of one group
    shape = (*call.shape, inner, *kernel)
    channel = _channel(call, spatial, inner)
    place = _transposed_place if call["transposed"] else _place
    where: list[Index] = [0, channel, *(place(call, dim, spatial) for dim in range(spatial))]
    picked = filled(region, pick(region, x, shape, where), shape, 0)
    taps = _transposed_taps(region, call, shape, channel) if call["transposed"] else _taps(weight, shape)
    factors = [region.convert(value, wide) for value in (picked, region.load(taps))]
    join_loops(region, *factors)
    total = region.reduce("sum_of_products", factors, range(2 + spatial, len(shape)))
    if call["bias"] is None:
        return region.convert(total, call.dtype)
    bias = reading(call["bias"], [None, 0, *[None] * spatial], (1, call.shape[1], *[1] * spatial))
    return region.map(lambda t, b: (t + b.to(wide)).to(call.dtype), [total, bias], call.shape, call.dtype)


def _channel(call: Call, spatial: int, inner: Size) -> Index:
    """The channel of x: those of the group that the result's channel is in."""
    if call["groups"] == 1:
        return 2 + spatial
    outer = call.shape[1] // call["groups"]

    def body(k: Num, c: Num, outer: Num, inner: Num) -> Num:
        return quotient_by_size(k, outer) * inner + c

    return Formula((1, 2 + spatial), body, (outer, inner))


def _place(call: Call, dim: int, spatial: int) -> Formula:
    numbers = tuple(_each(call[name], dim) for name in ("stride", "dilation", "padding"))
    return Formula((2 + dim, 3 + spatial + dim), lambda o, w, s, d, p: o * s + w * d - p, numbers)


def _transposed_place(call: Call, dim: int, spatial: int) -> Formula:
    """The input that reaches ``o`` through tap ``w``, if there is one: -1 if not."""
    numbers = tuple(_each(call[name], dim) for name in ("stride", "dilation", "padding"))

    def body(o: Num, w: Num, s: Num, d: Num, p: Num) -> Num:
        reach = o + p - w * d
        hit = (reach >= 0) & (rest_by_size(reach, s) < 1) & (rest_by_size(reach, s) >= 0)
        return select(hit, quotient_by_size(reach, s), o.const(-1))

    return Formula((2 + dim, 3 + spatial + dim), body, numbers)


def _each(values: Sequence[Size], dim: int) -> Size:
    """A list of one number stands for all dimensions."""
    return values[dim] if len(values) > 1 else values[0]


def _taps(weight: Operand, shape: Sequence[Size]) -> Operand:
    """The weight with a dimension of size 1 for the batch and for every place of the result."""
    spatial = len(weight.shape) - 2
    dims = [None, 0, *[None] * spatial, 1, *range(2, 2 + spatial)]
    return reading(weight, dims, tuple(1 if dim is None else weight.shape[dim] for dim in dims))


def _transposed_taps(region: Region, call: Call, shape: Sequence[Size], channel: Index) -> Value:
    spatial, outer = len(call.shape) - 2, call["weight"].shape[1]
    own = tuple(1 if dim == 0 or 2 <= dim < 2 + spatial else size for dim, size in enumerate(shape))
    kernel = range(3 + spatial, 3 + 2 * spatial)
    return pick(region, call["weight"], own, [channel, Formula((1,), rest_by_size, (outer,)), *kernel]).value


OPS: dict[object, Build] = {aten.convolution.default: _convolution}
