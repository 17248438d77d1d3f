"""Rotary position embedding, pairs half a head apart: y = x cos + rotate_half(x) sin.

x, y: f32 [B, H, S, D], D even; cos, sin: f32 [B, S, D] (batch stride may be 0).
y[i] = x[i] cos[i] - x[i + D/2] sin[i] and y[i + D/2] = x[i + D/2] cos[i + D/2] + x[i] sin[i + D/2].
(batch, head) rows x positions are split over threads. Error: 2u (|x[i] cos| + |x[j] sin|).
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, fma
from anvil.kernels.flow import each_vector, for_, my_segments
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    def body(x: Ref, cos: Ref, sin: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        heads, half = x.dim(1), x.dim(3) // 2
        with my_segments(x.dim(0) * heads, x.dim(2), tid, nthreads, width=1) as (row, first, last):
            batch, head = row // heads, row % heads
            with for_(first, last) as step:
                position = step.index

                def rotate(column: Val, mask: Val | None) -> None:
                    other = column + half
                    low = x.load(batch, head, position, column, lanes=LANES, mask=mask)
                    high = x.load(batch, head, position, other, lanes=LANES, mask=mask)
                    cos_low, cos_high = (cos.load(batch, position, c, lanes=LANES, mask=mask) for c in (column, other))
                    sin_low, sin_high = (sin.load(batch, position, c, lanes=LANES, mask=mask) for c in (column, other))
                    y.store(fma(low, cos_low, -(high * sin_low)), batch, head, position, column, mask=mask)
                    y.store(fma(high, cos_high, low * sin_high), batch, head, position, other, mask=mask)

                each_vector(0, half, rotate)

    arguments = [memref("x", "in", "f32", 4), memref("cos", "in", "f32", 3), memref("sin", "in", "f32", 3)]
    return define("rope", [*arguments, memref("y", "out", "f32", 4)], body, edges=[("D", 2 * LANES)])
