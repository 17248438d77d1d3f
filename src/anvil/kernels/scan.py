"""Running sums and products along one dimension: y[.., i] = x[.., 0] + ... + x[.., i].

x, y: [rows.., N] of any strides, the running dimension last; rows are split over threads, each is walked in order. Sums
of f16 and bf16 are carried in f32, everything else in the type of y. Integers wrap.
"""

from __future__ import annotations

import functools
from typing import Literal

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import Ref, Val, const, index
from anvil.kernels.flow import for_, my_range
from anvil.targets.base import Target

Combine = Literal["sum", "prod"]


@functools.cache
def build(target: Target, dtype: str, rank: int, combine: Combine) -> Kernel:
    """``dtype`` is f64, f32 or an integer type: what x and y are held in; ``rank`` of them, at least 1."""

    def body(x: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        rows = index(1)
        for dim in range(rank - 1):
            rows = rows * x.dim(dim)
        first, last = my_range(rows, tid, nthreads)
        start = const(0.0 if combine == "sum" else 1.0, dtype)
        with for_(first, last) as row:
            at, left = [], row.index
            for dim in reversed(range(rank - 1)):
                at.insert(0, left % x.dim(dim))
                left = left // x.dim(dim)
            with for_(0, x.dim(rank - 1), carry=[start]) as turn:
                element = x.load(*at, turn.index)
                total = turn.carry[0] + element if combine == "sum" else turn.carry[0] * element
                y.store(total, *at, turn.index)
                turn.next([total])

    arguments = [memref("x", "in", dtype, rank, unit=False), memref("y", "out", dtype, rank, unit=False)]
    return define(f"scan_{combine}_{dtype}_{rank}", arguments, body)
