"""Index of the largest element of each row: of equals the lowest index, and the first NaN before everything.

x: f32 [M, N]; y: i64 [M]. N = 0 gives 0 (there is no right answer; callers refuse it). N < 2^31.
16 lanes (lane = column mod 16) each keep their first best, then lanes are joined by value and index.
Rows are split over threads. Exact.
"""

from __future__ import annotations

import functools
from math import inf

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, cast, const, eq, first_lanes, iota, ne, select, shuffle, splat
from anvil.kernels.flow import for_, my_range
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    def body(x: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        size = x.dim(1)
        whole = size - size % LANES
        with for_(*my_range(x.dim(0), tid, nthreads)) as row:
            best = [const(-inf, "f32", lanes=LANES), iota()]
            with for_(0, whole, LANES, carry=best) as loop:
                loop.next(_keep_first(loop.carry, x.load(row.index, loop.index, lanes=LANES), loop.index))
            mask = first_lanes(size - whole)
            tail = x.load(row.index, whole, lanes=LANES, mask=mask, other=-inf)
            best = _keep_first(loop.results, tail, whole)
            y.store(cast(_join(*best), "i64"), row.index)

    return define("argmax", [memref("x", "in", "f32", 2), memref("y", "out", "i64", 1)], body, edges=[("N", LANES)])


def _beats(challenger: Val, holder: Val) -> Val:
    """NaN beats every number; a number beats what is smaller; nothing beats NaN."""
    number = eq(holder, holder)
    return number & ((challenger > holder) | ne(challenger, challenger))


def _keep_first(best: list[Val], value: Val, column: Val) -> list[Val]:
    better = _beats(value, best[0])
    indices = iota() + splat(cast(column, "i32"))
    return [select(better, value, best[0]), select(better, indices, best[1])]


def _join(value: Val, at: Val) -> Val:
    """The winner's index among the lanes; equal values (or both NaN) go to the lower index."""
    lanes = LANES
    while lanes > 1:
        half = lanes // 2
        low, high = range(half), range(half, lanes)
        value_low, value_high = shuffle(value, value, low), shuffle(value, value, high)
        at_low, at_high = shuffle(at, at, low), shuffle(at, at, high)
        high_beats = _beats(value_high, value_low)
        tie = (high_beats | _beats(value_low, value_high)) ^ 1
        take_high = high_beats | (tie & (at_high < at_low))
        value, at = select(take_high, value_high, value_low), select(take_high, at_high, at_low)
        lanes = half
    return at[0]
