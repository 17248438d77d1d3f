"""RMS normalisation of rows: y = x / sqrt(mean(x^2) + eps) * w.

x, y: f32 [M, D]; w: f32 [D]; eps: f32. Rows are split over threads.
Sum of squares in 16 lanes (lane = column mod 16) joined by a fixed tree, so a row's bits depend on nothing else.
Error: relative (1/2 c sqrt(D) + 4) u.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref, scalar
from anvil.kernels.dsl import LANES, Ref, Val, cast, const, first_lanes, fma, splat, tree
from anvil.kernels.flow import each_vector, for_, my_range
from anvil.kernels.mathlib.roots import rsqrt
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    def body(x: Ref, w: Ref, y: Ref, eps: Val, tid: Val, nthreads: Val) -> None:
        size = x.dim(1)
        with for_(*my_range(x.dim(0), tid, nthreads)) as row:
            mean_square = _sum_of_squares(x, row.index, size) / cast(size, "f32")
            scale = splat(rsqrt(mean_square + eps))

            def normalise(column: Val, mask: Val | None, row: Val = row.index, scale: Val = scale) -> None:
                value = x.load(row, column, lanes=LANES, mask=mask)
                weight = w.load(column, lanes=LANES, mask=mask)
                y.store(value * scale * weight, row, column, mask=mask)

            each_vector(0, size, normalise)

    arguments = [memref("x", "in", "f32", 2), memref("w", "in", "f32", 1), memref("y", "out", "f32", 2)]
    return define("rms_norm", [*arguments, scalar("eps", "f32")], body, edges=[("D", LANES)])


def _sum_of_squares(x: Ref, row: Val, size: Val) -> Val:
    """Sum over ``size`` columns; the masked tail adds zeros, so it needs no branch."""
    whole = size - size % LANES
    with for_(0, whole, LANES, carry=const(0.0, "f32", lanes=LANES)) as loop:
        value = x.load(row, loop.index, lanes=LANES)
        loop.next(fma(value, value, loop.carry))
    tail = x.load(row, whole, lanes=LANES, mask=first_lanes(size - whole))
    return tree(fma(tail, tail, loop.results), lambda a, b: a + b)
