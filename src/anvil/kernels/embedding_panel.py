"""Rows of a table packed in panels for the matrix product: y[m, d] = w[id // width, d, id % width], id = ids[m].

ids: i64 [M]; w: f32 [P, D, width] (:mod:`anvil.kernels.panel`); y: f32 [M, D]. So that an embedding tied to the output
projection is stored once. An id outside [0, P width) gives a row of NaN: the table's surroundings are never read, and
the runtime refuses such ids beforehand. The grid is split over threads. Exact.
"""

from __future__ import annotations

import functools
from math import nan

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import Ref, Val, cast, const
from anvil.kernels.flow import for_, if_else, my_segments
from anvil.kernels.panel import panel_of
from anvil.targets.base import Target


@functools.cache
def build(target: Target) -> Kernel:
    panel = panel_of(target)

    def body(ids: Ref, w: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        with my_segments(y.dim(0), y.dim(1), tid, nthreads) as (row, first, last):
            token = cast(ids.load(row), "index")
            with if_else((token >= 0) & (token < w.dim(0) * panel.width)) as (known, unknown):
                with known, for_(first, last) as column:
                    y.store(w.load(token // panel.width, column.index, token % panel.width), row, column.index)
                with unknown, for_(first, last) as column:
                    y.store(const(nan, "f32"), row, column.index)

    weight = memref("w", "in", "f32", 3, inner=(panel.width,), layout=panel.layout)
    return define("embedding_panel", [memref("ids", "in", "i64", 1), weight, memref("y", "out", "f32", 2)], body)
