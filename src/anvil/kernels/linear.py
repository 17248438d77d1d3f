"""Matrix product with packed weights: y = x w^T (+ bias).

x: f32 [M, K]; w: f32 [P, K, width] packed from [N, K] (:mod:`anvil.kernels.panel`); bias: f32 [N]; y: f32 [M, N].

Every output is one chain of fused multiply-adds over k = 0, 1, .., K-1 that starts at its bias or 0. Both schedules
keep that order, so a row's bits depend neither on M nor on the target nor on the number of threads:

* M = 1, a matrix-vector product limited by memory: panels are split over threads; a thread streams ``_STREAMS`` panels
  at a time, so that there are enough independent chains and enough reads under way.
* M > 1: panels are split over threads (rows too, if there are more threads than panels). A block of x, ``_BLOCK_K``
  columns wide, is copied to the stack and stays in the first-level cache while the weights of that k-block pass by;
  a tile of ``gemm_tile`` accumulators lives in registers. Between k-blocks the accumulators rest in y.

Error: 4 sqrt(K) u S for zero-mean data, S the product of absolute values; exact while partial sums stay below 2^24.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, const, eq, first_lanes, fma, greater, index, lesser, splat, stack
from anvil.kernels.flow import choose, each_vector, for_, if_, if_else, in_pieces, my_range
from anvil.kernels.panel import Panel, panel_of
from anvil.targets.base import Target

_STREAMS = 4  # panels a matrix-vector product reads at a time
_BLOCK_K = 128  # columns of x copied to the stack at a time
_STACK = 16 << 10  # bytes of stack a kernel may use
Accumulators = list[list[Val]]  # [row or stream][vector]


@dataclass(frozen=True)
class _Operands:
    x: Ref
    w: Ref
    bias: Ref | None
    y: Ref
    panel: Panel
    edge: Ref  # a tile on the stack, for the outputs of a last panel that y has only a part of
    outputs: Val


@functools.cache
def build(target: Target, has_bias: bool = False) -> Kernel:
    panel = panel_of(target)
    tile_rows = target.gemm_tile[0]

    def product(x: Ref, w: Ref, bias: Ref | None, y: Ref, tid: Val, nthreads: Val) -> None:
        edge = stack("f32", tile_rows, panel.width)
        block_rows = (_STACK // 4 - tile_rows * panel.width) // _BLOCK_K // tile_rows * tile_rows
        block = stack("f32", block_rows, _BLOCK_K)
        operands = _Operands(x, w, bias, y, panel, edge, y.dim(1))
        with if_else(eq(x.dim(0), 1)) as (vector, matrix):
            with vector:
                _matrix_vector(operands, tid, nthreads)
            with matrix:
                _matrix_matrix(operands, block, block_rows, tile_rows, tid, nthreads)

    def plain(x: Ref, w: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        product(x, w, None, y, tid, nthreads)

    arguments = [
        memref("x", "in", "f32", 2),
        memref("w", "in", "f32", 3, inner=(panel.width,), layout=panel.layout),
        *([memref("bias", "in", "f32", 1)] if has_bias else []),
        memref("y", "out", "f32", 2),
    ]
    edges = [("N", panel.width), ("N", _STREAMS * panel.width), ("M", tile_rows), ("K", _BLOCK_K)]
    return define("linear_bias" if has_bias else "linear", arguments, product if has_bias else plain, edges=edges)


def _matrix_vector(o: _Operands, tid: Val, nthreads: Val) -> None:
    def stream(start: Val, count: int) -> None:
        panels = [start + offset for offset in range(count)]
        with for_(0, o.x.dim(1), carry=[_start(o, panel) for panel in panels]) as loop:
            value = splat(o.x.load(0, loop.index), o.panel.lanes)
            weights = [o.panel.load(o.w, panel, loop.index) for panel in panels]
            loop.next([_multiply_add(value, row, chain) for row, chain in zip(weights, loop.carry, strict=True)])
        for panel, chain in zip(panels, loop.results, strict=True):
            _store(o, [chain], index(0), panel)

    first, last = my_range(o.w.dim(0), tid, nthreads)
    in_pieces(first, last, _STREAMS, stream)


def _matrix_matrix(o: _Operands, block: Ref, block_rows: int, tile_rows: int, tid: Val, nthreads: Val) -> None:
    across = lesser(nthreads, greater(o.w.dim(0), index(1)))
    down = nthreads // across
    with if_(tid < across * down):
        first_panel, last_panel = my_range(o.w.dim(0), tid % across, across)
        first_row, last_row = my_range(o.x.dim(0), tid // across, down)
        _initialise(o, first_row, last_row, first_panel, last_panel)
        with for_(0, o.x.dim(1), _BLOCK_K) as k, for_(first_row, last_row, block_rows) as m:
            depth = lesser(o.x.dim(1) - k.index, index(_BLOCK_K))
            count = lesser(last_row - m.index, index(block_rows))
            _copy_block(o.x, block, m.index, count, k.index, depth)
            with for_(first_panel, last_panel) as panel:

                def tile(start: Val, rows: int, panel: Val = panel.index) -> None:
                    place = [m.index + start + row for row in range(rows)]
                    with for_(0, depth, carry=_load(o, place, panel)) as loop:
                        weights = o.panel.load(o.w, panel, k.index + loop.index)
                        values = [splat(block.load(start + row, loop.index), o.panel.lanes) for row in range(rows)]
                        chains = zip(values, loop.carry, strict=True)
                        loop.next([_multiply_add(value, weights, chain) for value, chain in chains])
                    _store(o, loop.results, place[0], panel)

                in_pieces(0, count, tile_rows, tile)


def _multiply_add(value: Val, weights: list[Val], chain: list[Val]) -> list[Val]:
    return [fma(value, weight, partial) for weight, partial in zip(weights, chain, strict=True)]


def _start(o: _Operands, panel: Val) -> list[Val]:
    """What the chains of one panel start from."""
    vectors = range(o.panel.vectors)
    if o.bias is None:
        return [const(0.0, "f32", lanes=o.panel.lanes) for _ in vectors]
    columns = [panel * o.panel.width + vector * o.panel.lanes for vector in vectors]
    masks = [first_lanes(o.outputs - column, o.panel.lanes) for column in columns]
    return [o.bias.load(c, lanes=o.panel.lanes, mask=mask) for c, mask in zip(columns, masks, strict=True)]


def _initialise(o: _Operands, first_row: Val, last_row: Val, first_panel: Val, last_panel: Val) -> None:
    """Set this thread's part of y to the bias, or 0."""
    last_column = lesser(last_panel * o.panel.width, o.outputs)
    with for_(first_row, last_row) as row:

        def fill(column: Val, mask: Val | None) -> None:
            zero = const(0.0, "f32", lanes=LANES)
            value = zero if o.bias is None else o.bias.load(column, lanes=LANES, mask=mask)
            o.y.store(value, row.index, column, mask=mask)

        each_vector(first_panel * o.panel.width, last_column, fill)


def _copy_block(x: Ref, block: Ref, row: Val, rows: Val, column: Val, columns: Val) -> None:
    with for_(0, rows) as line:

        def move(place: Val, mask: Val | None) -> None:
            block.store(x.load(row + line.index, column + place, lanes=LANES, mask=mask), line.index, place, mask=mask)

        each_vector(0, columns, move)


def _load(o: _Operands, rows: list[Val], panel: Val) -> Accumulators:
    """y at ``rows`` and the columns of ``panel``; what lies beyond N is undefined."""
    column = panel * o.panel.width
    zeros = [[const(0.0, "f32", lanes=o.panel.lanes)] * o.panel.vectors] * len(rows)

    def partial() -> Accumulators:
        with for_(0, index(len(rows))) as row, for_(0, o.outputs - column) as j:
            o.edge.store(o.y.load(rows[0] + row.index, column + j.index), row.index, j.index)
        return [o.panel.load(o.edge, row) for row in range(len(rows))]

    def whole() -> Accumulators:
        offsets = [column + vector * o.panel.lanes for vector in range(o.panel.vectors)]
        return [[o.y.load(row, offset, lanes=o.panel.lanes) for offset in offsets] for row in rows]

    return choose(column + o.panel.width <= o.outputs, whole, partial, like=zeros)


def _store(o: _Operands, values: Accumulators, first_row: Val, panel: Val) -> None:
    """Write rows of accumulators to y from ``first_row``, at the columns of ``panel`` that y has."""
    column = panel * o.panel.width
    places = [(row, vector) for row in range(len(values)) for vector in range(o.panel.vectors)]
    with if_else(column + o.panel.width <= o.outputs) as (whole, partial):
        with whole:
            for row, vector in places:
                o.y.store(values[row][vector], first_row + row, column + vector * o.panel.lanes)
        with partial:
            for row, vector in places:
                o.edge.store(values[row][vector], row, vector * o.panel.lanes)
            with for_(0, index(len(values))) as row, for_(0, o.outputs - column) as j:
                o.y.store(o.edge.load(row.index, j.index), first_row + row.index, column + j.index)
