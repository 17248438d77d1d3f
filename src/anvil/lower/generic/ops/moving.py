"""Ops that move elements: flip, roll, repeat, pad, and the triangles of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num, compare, magnitude, select
from anvil.lower.generic.picking import Formula, Index, along, pick, pick_or, quotient_by_size, rest_by_size
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Value

aten = torch.ops.aten


def _flip(region: Region, call: Call) -> Value:
    source = call["self"]
    rank = len(source.shape)
    turned = {dim % rank for dim in call["dims"]}
    where: list[Index] = [
        Formula((dim,), lambda i, n: n - 1 - i, (source.shape[dim],)) if dim in turned else dim for dim in range(rank)
    ]
    return pick(region, source, call.shape, where).value


def _roll(region: Region, call: Call) -> Value:
    """Element i comes from i - shift, around the end. Without ``dims`` PyTorch flattens first: a decomposition."""
    source, rank = call["self"], len(call["self"].shape)
    shifts = dict.fromkeys(range(rank), 0)
    for shift, dim in zip(call["shifts"], call["dims"], strict=True):
        shifts[dim % rank] += shift

    def around(i: Num, n: Num, shift: Num) -> Num:
        from_end = rest_by_size(i - shift, n)
        return select(from_end < 0, from_end + n, from_end)

    where: list[Index] = [
        Formula((dim,), around, (source.shape[dim], shifts[dim])) if shifts[dim] != 0 else dim for dim in range(rank)
    ]
    return pick(region, source, call.shape, where).value


def _repeat(region: Region, call: Call) -> Value:
    """Copies side by side; new dimensions come first."""
    source = call["self"]
    new = len(call.shape) - len(source.shape)
    where = [Formula((new + dim,), rest_by_size, (size,)) for dim, size in enumerate(source.shape)]
    return pick(region, source, call.shape, where).value


def _repeat_interleave(region: Region, call: Call) -> Value:
    """Every element of ``dim`` repeated in place."""
    source, rank = call["self"], len(call["self"].shape)
    region.require(call["dim"] is not None and rank > 0)
    dim = call["dim"] % rank
    where: list[Index] = [Formula((i,), quotient_by_size, (call["repeats"],)) if i == dim else i for i in range(rank)]
    return pick(region, source, call.shape, where).value


def _constant_pad(region: Region, call: Call) -> Value:
    """``pad`` counts from the last dimension: before and after it, then before and after the one before it, ..."""
    return pick_or(region, call["self"], call.shape, _padded(call, lambda i, n, low: i - low), call["value"])


def _padding(formula: Callable[..., Num]) -> Build:
    return lambda region, call: pick(region, call[_SELF], call.shape, _padded(call, formula, "padding")).value


_SELF = "self"


def _padded(call: Call, formula: Callable[..., Num], name: str = "pad") -> Sequence[Index]:
    source, pads = call[_SELF], call[name]
    rank = len(source.shape)
    where: list[Index] = list(range(rank))
    for position in range(len(pads) // 2):
        dim = rank - 1 - position
        where[dim] = Formula((dim,), formula, (source.shape[dim], pads[2 * position]))
    return where


def _reflected(i: Num, n: Num, low: Num) -> Num:
    """Around the first and the last element, which are not repeated."""
    return n - 1 - magnitude(n - 1 - magnitude(i - low))


def _replicated(i: Num, n: Num, low: Num) -> Num:
    return i - low


def _triangle(predicate: str) -> Build:
    """Elements whose column - row is on one side of ``diagonal``; zeros for the others."""

    def build(region: Region, call: Call) -> Value:
        source = call["self"]
        row, column = (along(source.shape, len(source.shape) - back) for back in (2, 1))
        diagonal = region.scalar(call["diagonal"], "i64")

        def element(x: Num, i: Num, j: Num, d: Num) -> Num:
            return select(compare(predicate, j - i, d), x, x.const(0))

        return region.map(element, [source, row, column, diagonal], call.shape, call.dtype, cheap=True)

    return build


OPS: dict[object, Build] = {
    aten.flip.default: _flip,
    aten.roll.default: _roll,
    aten.repeat.default: _repeat,
    aten.repeat_interleave.self_int: _repeat_interleave,
    aten.constant_pad_nd.default: _constant_pad,
    aten.reflection_pad1d.default: _padding(_reflected),
    aten.reflection_pad2d.default: _padding(_reflected),
    aten.reflection_pad3d.default: _padding(_reflected),
    aten.replication_pad1d.default: _padding(_replicated),
    aten.replication_pad2d.default: _padding(_replicated),
    aten.replication_pad3d.default: _padding(_replicated),
    aten.tril.default: _triangle("le"),
    aten.triu.default: _triangle("ge"),
}
