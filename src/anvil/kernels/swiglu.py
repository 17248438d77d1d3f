"""The gate of a LLaMA MLP: y = silu(gate) * up.

gate, up, y: f32 [M, N]. Elementwise; the grid is split over threads in blocks of 16 columns.
Error: 4u |gate up| + 4 ulp.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val
from anvil.kernels.flow import each_vector, my_segments
from anvil.kernels.mathlib.exponential import silu
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    def body(gate: Ref, up: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        with my_segments(y.dim(0), y.dim(1), tid, nthreads) as (row, first, last):

            def combine(column: Val, mask: Val | None) -> None:
                activated = silu(gate.load(row, column, lanes=LANES, mask=mask))
                y.store(activated * up.load(row, column, lanes=LANES, mask=mask), row, column, mask=mask)

            each_vector(first, last, combine)

    arguments = [memref("gate", "in", "f32", 2), memref("up", "in", "f32", 2), memref("y", "out", "f32", 2)]
    return define("swiglu", arguments, body, edges=[("N", LANES)])
