"""Rows of a plain table: y[m, :] = w[ids[m], :].

ids: i64 [M]; w: f32 [V, D]; y: f32 [M, D]. An id outside [0, V) gives a row of NaN: the table's surroundings are
never read, and the runtime refuses such ids beforehand. The grid is split over threads. Exact.
A table packed for the matrix product is read by its quantisation mode's own embedding kernel (``anvil.quant``).
"""

from __future__ import annotations

import functools
from math import nan

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, cast, const
from anvil.kernels.flow import each_vector, if_else, my_segments
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    def body(ids: Ref, w: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        with my_segments(y.dim(0), y.dim(1), tid, nthreads) as (row, first, last):
            token = cast(ids.load(row), "index")

            def move(column: Val, mask: Val | None) -> None:
                y.store(w.load(token, column, lanes=LANES, mask=mask), row, column, mask=mask)

            def spoil(column: Val, mask: Val | None) -> None:
                y.store(const(nan, "f32", lanes=LANES), row, column, mask=mask)

            with if_else((token >= 0) & (token < w.dim(0))) as (known, unknown):
                with known:
                    each_vector(first, last, move)
                with unknown:
                    each_vector(first, last, spoil)

    arguments = [memref("ids", "in", "i64", 1), memref("w", "in", "f32", 2), memref("y", "out", "f32", 2)]
    return define("embedding", arguments, body, edges=[("D", LANES)])
