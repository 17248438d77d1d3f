"""Rows times the matrix of the expert that each is sent to: y[n, j, o] = sum over d of x[n, j, d] w[ids[n, j], o, d].

x: f32 [N, K, D]; w: f32 [E, O, D]; ids: i64 [N, K], each 0 .. E - 1; y: f32 [N, K, O]. Weights lie plain.
Sums in 16 lanes (lane = d mod 16) joined by a fixed tree. Rows x outputs are split over threads.
Error: the linear bound of the numeric contract.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, cast, const, first_lanes, fma, tree
from anvil.kernels.flow import choose, for_, in_pieces, my_segments
from anvil.targets.base import Target

_OUTPUTS = 4  # whose sums are held in registers at a time


@functools.cache
def build(target: Target) -> Kernel:
    def body(x: Ref, w: Ref, ids: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        per_token = x.dim(1)
        rows = x.dim(0) * per_token
        with my_segments(rows, w.dim(1), tid, nthreads) as (row, first, last):
            place = (row // per_token, row % per_token)
            source = x.at(*place, 0, rank=1)
            matrix = w.at(cast(ids.load(*place), "index"), 0, 0, rank=2)

            def outputs(start: Val, count: int) -> None:
                for number, total in enumerate(_dots(source, matrix, start, count)):
                    y.store(total, *place, start + number)

            in_pieces(first, last, _OUTPUTS, outputs)

    arguments = [memref("x", "in", "f32", 3), memref("w", "in", "f32", 3), memref("ids", "in", "i64", 2)]
    return define("expert_linear", [*arguments, memref("y", "out", "f32", 3)], body, edges=[("O", LANES), ("D", LANES)])


def _dots(x: Ref, w: Ref, first: Val, count: int) -> list[Val]:
    """Products of x with ``count`` rows of w, from row ``first`` on."""
    size = x.dim(0)
    whole = size - size % LANES

    def more(column: Val, mask: Val | None, sums: list[Val]) -> list[Val]:
        left = x.load(column, lanes=LANES, mask=mask)
        rights = [w.load(first + number, column, lanes=LANES, mask=mask) for number in range(count)]
        return [fma(left, right, chain) for right, chain in zip(rights, sums, strict=True)]

    with for_(0, whole, LANES, carry=[const(0.0, "f32", lanes=LANES)] * count) as loop:
        loop.next(more(loop.index, None, loop.carry))
    sums = choose(
        whole < size, lambda: more(whole, first_lanes(size - whole), loop.results), lambda: loop.results, loop.results
    )
    return [tree(total, lambda one, other: one + other) for total in sums]
