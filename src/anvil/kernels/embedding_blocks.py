"""Rows of a quantised table, read out of the blob of the matrix product: y[m, k] = w[ids[m], k], rounded to f32 once.

ids: i64 [M]; w: i8 [P, bytes] (:mod:`anvil.kernels.blocks`); y: f32 [M, K]. A group is expanded for all outputs of
its panel and one column of it is kept. An id outside [0, P width) gives a row of NaN: the table's surroundings are
never read, and the runtime refuses such ids beforehand. The grid of rows and groups is split over threads.
"""

from __future__ import annotations

from math import nan

from anvil.kernels.base import Kernel
from anvil.kernels.blocks import BlockFormat
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import Ref, Val, cast, const, index, lesser
from anvil.kernels.flow import for_, if_else, my_segments
from anvil.kernels.linear_blocks import Tile, Weights, blob_argument
from anvil.kernels.panel import panel_of
from anvil.targets.base import Target

_SEGMENT = 64  # columns a thread writes at least, in whole groups


def build_for(target: Target, format_: BlockFormat) -> Kernel:
    """The embedding for a table of ``format_``."""
    panel = panel_of(target)

    def body(ids: Ref, w: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        tile = Tile.make(format_, panel, format_.group)
        weights = Weights(format_, w, panel, target)
        with my_segments(y.dim(0), y.dim(1), tid, nthreads, width=_SEGMENT) as (row, first, last):
            token = cast(ids.load(row), "index")
            with if_else((token >= 0) & (token < w.dim(0) * panel.width)) as (known, unknown):
                with known, for_(first, last, format_.group) as start:
                    weights.expand(token // panel.width, start.index // format_.group, tile, index(0))
                    lane = token % panel.width
                    end = start.index + format_.group
                    with for_(start.index, lesser(end, last)) as column:
                        value = tile.values.load(column.index - start.index, lane)
                        y.store(value * tile.scales.load(0, lane) if format_.scale else value, row, column.index)
                with unknown, for_(first, last) as column:
                    y.store(const(nan, "f32"), row, column.index)

    arguments = [memref("ids", "in", "i64", 1), blob_argument(format_, panel), memref("y", "out", "f32", 2)]
    name = f"embedding_{format_.name}".replace("-", "_")
    return define(name, arguments, body, edges=[("D", format_.group)])
