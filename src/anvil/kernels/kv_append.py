"""Append keys or values to a cache: cache[b, h, past[b] + s, :] = new[b, h, s, :], in the cache's element type.

new: f32 [B, H, S, D]; past: i64 [B], slots already used; cache: [B, H, C, D] of capacity C. f16 and bf16 round to
nearest even. An i8 cache comes with scale: f32 [B, H, C]; with m the largest magnitude of a row, scale = m / 127 and
the codes are x / scale, rounded to nearest even; a row of zeros has scale 0, a row that is not finite has scale NaN. A
slot outside the capacity is not written: memory stays safe, and the runtime refuses such a step beforehand. (batch,
head) rows x positions are split over threads. Exact.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, cast, const, eq, greater, lesser, magnitude, ne, select, splat, tree
from anvil.kernels.flow import each_vector, for_, if_, my_segments
from anvil.kernels.halves import narrow_bf16, narrow_f16
from anvil.targets.base import Target

LEVELS = 127.0  # codes are -127 .. 127
_ROUND = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, held in the low bits


@functools.cache
def build(target: Target, storage: str = "f32", place: str = "whole") -> Kernel:
    """``storage``: f32, f16, bf16 or i8; ``place``: whole, ring or paged."""

    def body(new: Ref, past: Ref, *rest: Ref | Val) -> None:
        *refs, tid, nthreads = rest
        assert isinstance(tid, Val) and isinstance(nthreads, Val)
        table = refs.pop(0) if place == "paged" else None
        cache, *scales = refs
        assert isinstance(cache, Ref)
        heads, size = new.dim(1), new.dim(3)
        with my_segments(new.dim(0) * heads, new.dim(2), tid, nthreads, width=1) as (row, first, last):
            batch, head = row // heads, row % heads
            used = cast(past.load(batch), "index")
            with for_(first, last) as step:
                source, position = new.at(batch, head, step.index, 0, rank=1), used + step.index
                row_of_cache, slot = batch, position
                room = cache.dim(2)
                if place == "ring":
                    slot = position % room
                elif isinstance(table, Ref):
                    slot = position % cache.dim(2)
                    room = table.dim(1) * cache.dim(2)
                with if_((position >= 0) & (position < room) if place != "ring" else position >= 0):
                    if isinstance(table, Ref):
                        row_of_cache = cast(table.load(batch, position // cache.dim(2)), "index")
                    destination = cache.at(row_of_cache, head, slot, 0, rank=1)
                    if storage == "i8":
                        (scale,) = scales
                        assert isinstance(scale, Ref)
                        scale.store(_quantise(source, destination, size), row_of_cache, head, slot)
                    else:
                        _round(source, destination, size, storage)

    arguments = [memref("new", "in", "f32", 4), memref("past", "in", "i64", 1)]
    if place == "paged":
        arguments.append(memref("table", "in", "i64", 2))
    arguments.append(memref("cache", "out", storage, 4))
    if storage == "i8":
        arguments.append(memref("scale", "out", "f32", 3, unit=False))
    parts = ["kv_append", "" if place == "whole" else place, "" if storage == "f32" else storage]
    return define("_".join(part for part in parts if part), arguments, body, edges=[("D", LANES)])


def _round(source: Ref, destination: Ref, size: Val, storage: str) -> None:
    def move(column: Val, mask: Val | None) -> None:
        value = source.load(column, lanes=LANES, mask=mask)
        if storage != "f32":
            value = (narrow_bf16 if storage == "bf16" else narrow_f16)(value).bits("i16")
        destination.store(value, column, mask=mask)

    each_vector(0, size, move)


def _quantise(source: Ref, destination: Ref, size: Val) -> Val:
    """Codes of one row; returns its scale."""
    whole = size - size % LANES

    def largest(column: Val, best: Val, mask: Val | None = None) -> Val:
        value = magnitude(source.load(column, lanes=LANES, mask=mask))
        return select(ne(value, value), value, greater(best, value))  # greater(a, NaN) is NaN: it stays

    with for_(0, whole, LANES, carry=const(0.0, "f32", lanes=LANES)) as loop:
        loop.next(largest(loop.index, loop.carry))
    best = loop.results
    with for_(whole, size, carry=best) as rest:
        value = magnitude(splat(source.load(rest.index)))
        rest.next(select(ne(value, value), value, greater(rest.carry, value)))
    most = tree(rest.results, lambda a, b: select(ne(a, a), a, greater(a, b)))
    finite = most - most  # 0, or NaN where the row has an infinity or a NaN
    scale = most / LEVELS + finite
    divisor = splat(select(eq(scale, 0.0), const(1.0, "f32"), scale))

    def code(column: Val, mask: Val | None) -> None:
        quotient = source.load(column, lanes=LANES, mask=mask) / divisor
        bounded = lesser(greater(quotient, const(-LEVELS, quotient.type)), const(LEVELS, quotient.type))
        bits = (bounded + _ROUND).bits("i32") - const(_ROUND, quotient.type).bits("i32")
        destination.store(cast(bits, "i8"), column, mask=mask)

    each_vector(0, size, code)
    return scale
