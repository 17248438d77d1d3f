"""Append keys or values to a cache: cache[b, h, past[b] + s, :] = new[b, h, s, :].

new: f32 [B, H, S, D]; past: i64 [B], slots already used; cache: f32 [B, H, C, D] of capacity C.
A slot outside the capacity is not written: memory stays safe, and the runtime refuses such a step beforehand.
(batch, head) rows x positions are split over threads. Exact.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, cast
from anvil.kernels.flow import each_vector, for_, if_, my_segments
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    def body(new: Ref, past: Ref, cache: Ref, tid: Val, nthreads: Val) -> None:
        heads, size = new.dim(1), new.dim(3)
        with my_segments(new.dim(0) * heads, new.dim(2), tid, nthreads, width=1) as (row, first, last):
            batch, head = row // heads, row % heads
            used = cast(past.load(batch), "index")
            with for_(first, last) as step:
                source, slot = step.index, used + step.index

                def move(column: Val, mask: Val | None) -> None:
                    value = new.load(batch, head, source, column, lanes=LANES, mask=mask)
                    cache.store(value, batch, head, slot, column, mask=mask)

                with if_((slot >= 0) & (slot < cache.dim(2))):
                    each_vector(0, size, move)

    arguments = [memref("new", "in", "f32", 4), memref("past", "in", "i64", 1), memref("cache", "out", "f32", 4)]
    return define("kv_append", arguments, body, edges=[("D", LANES)])
