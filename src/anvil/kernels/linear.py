"""Matrix product with packed weights: y = x w^T (+ bias).

x: f32 [M, K]; w: f32 [P, K, width] packed from [N, K] (:mod:`anvil.kernels.panel`); bias: f32 [N]; y: f32 [M, N].

Every output is one chain of fused multiply-adds over k = 0, 1, .., K-1 that starts at its bias or 0. Both schedules
keep that order, so a row's bits depend neither on M nor on the target nor on the number of threads:

* M = 1, a matrix-vector product limited by memory: panels are split over threads, so that a thread reads its part of
  the weights as one stream, in order. (Several streams at a time and software prefetch were measured: no faster.)
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
from anvil.kernels.dsl import LANES, Ref, Val, ceil_div, eq, fma, greater, index, lesser, splat, stack
from anvil.kernels.flow import choose, each_vector, for_, if_, if_else, in_pieces, my_range, unrolled
from anvil.kernels.panel import panel_of
from anvil.kernels.panel_output import Output, Vectors
from anvil.targets.base import Target

_BLOCK_K = 288  # columns of x copied to the stack at a time, at most
_ROWS = 24  # rows of x on the stack at a time, at most, if a tile is not larger: weights pass by once for all of them
_GROUP = 512 << 10  # bytes of weights of one k-block that stay in the second-level cache while rows of x pass by
_UNROLL = 4  # steps of k in one turn of a loop, at most
_VALUES = 32  # elements of x that one turn of a loop may hold


@dataclass(frozen=True)
class _Operands:
    x: Ref
    w: Ref
    out: Output


@functools.cache
def build(target: Target, has_bias: bool = False) -> Kernel:
    panel = panel_of(target)
    tile_rows = target.gemm_tile[0]

    def product(x: Ref, w: Ref, bias: Ref | None, y: Ref, tid: Val, nthreads: Val) -> None:
        block_rows = max(_ROWS // tile_rows, 1) * tile_rows
        block = stack("f32", block_rows, _BLOCK_K)
        operands = _Operands(x, w, Output(y, bias, panel, stack("f32", tile_rows, panel.width)))
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
    edges = [("N", panel.width), ("M", tile_rows), ("K", _BLOCK_K)]
    return define("linear_bias" if has_bias else "linear", arguments, product if has_bias else plain, edges=edges)


def _matrix_vector(o: _Operands, tid: Val, nthreads: Val) -> None:
    with for_(*my_range(o.w.dim(0), tid, nthreads)) as panel:

        def step(k: Val, offset: int, chain: Vectors, panel: Val = panel.index) -> Vectors:
            value = splat(o.x.at(0, k, rank=1).load(offset), o.out.panel.lanes)
            return _multiply_add(value, o.out.panel.load(o.w.at(panel, k, rank=2), offset), chain)

        sums = unrolled(o.x.dim(1), _UNROLL, o.out.start(panel.index), step)
        o.out.store([sums], index(0), panel.index)


def _matrix_matrix(o: _Operands, block: Ref, block_rows: int, tile_rows: int, tid: Val, nthreads: Val) -> None:
    across = lesser(nthreads, greater(o.w.dim(0), index(1)))
    down = nthreads // across
    step = _balanced(o.x.dim(1), _BLOCK_K)
    most = _GROUP // (4 * _BLOCK_K * o.out.panel.width)
    with if_(tid < across * down):
        first_panel, last_panel = my_range(o.w.dim(0), tid % across, across)
        first_row, last_row = my_range(o.x.dim(0), tid // across, down)
        group = _balanced(last_panel - first_panel, most)
        with (
            for_(first_panel, last_panel, group) as first,
            for_(0, greater(o.x.dim(1), index(1)), step) as k,
            for_(first_row, last_row, block_rows) as m,
        ):
            depth = lesser(o.x.dim(1) - k.index, step)
            count = lesser(last_row - m.index, index(block_rows))
            _copy_block(o.x, block, m.index, count, k.index, depth)
            with for_(first.index, lesser(first.index + group, last_panel)) as panel:

                def tile(line: Val, rows: int, panel: Val = panel.index) -> None:
                    place = [m.index + line + row for row in range(rows)]
                    start = [o.out.start(panel)] * rows
                    so_far = choose(eq(k.index, 0), lambda: start, lambda: o.out.load(place, panel), start)

                    def step(base: Val, offset: int, chains: list[Vectors]) -> list[Vectors]:
                        weights = o.out.panel.load(o.w.at(panel, k.index + base, rank=2), offset)
                        x = block.at(line, base, rank=2)
                        values = [splat(x.load(row, offset), o.out.panel.lanes) for row in range(rows)]
                        return [_multiply_add(value, weights, c) for value, c in zip(values, chains, strict=True)]

                    sums = unrolled(depth, min(_UNROLL, _VALUES // rows), so_far, step)
                    o.out.store(sums, place[0], panel)

                in_pieces(0, count, tile_rows, tile)


def _balanced(count: Val, most: int) -> Val:
    """The size of the fewest equal parts of ``count`` that are not larger than ``most``; at least 1."""
    parts = greater(ceil_div(count, most), index(1))
    return greater(ceil_div(count, parts), index(1))


def _multiply_add(value: Val, weights: Vectors, chain: Vectors) -> Vectors:
    return [fma(value, weight, partial) for weight, partial in zip(weights, chain, strict=True)]


def _copy_block(x: Ref, block: Ref, row: Val, rows: Val, column: Val, columns: Val) -> None:
    with for_(0, rows) as line:

        def move(place: Val, mask: Val | None) -> None:
            block.store(x.load(row + line.index, column + place, lanes=LANES, mask=mask), line.index, place, mask=mask)

        each_vector(0, columns, move)
