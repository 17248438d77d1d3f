"""Rows in order: a merge sort from runs of one element to the whole row, stable; NaN is larger than everything.

x [M, N]; values [M, N] of the same type, indices i64 [M, N]: values[m, n] = x[m, indices[m, n]]. work: i64 [M, 2, N],
what is in it does not matter. N < 2^62. Rows are split over threads. Exact.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import Ref, Val, cast, index, lesser, select
from anvil.kernels.flow import for_, my_range
from anvil.lower.generic.elements import loaded
from anvil.lower.generic.num import Num, compare
from anvil.targets.base import Target

_LONGEST = 62


@functools.cache
def build(target: Target, dtype: str, descending: bool) -> Kernel:
    def body(x: Ref, values: Ref, indices: Ref, work: Ref, tid: Val, nthreads: Val) -> None:
        size = x.dim(1)
        with for_(*my_range(x.dim(0), tid, nthreads)) as row:
            with for_(0, size) as turn:
                work.store(cast(turn.index, "i64"), row.index, 0, turn.index)
            passes = _passes(size)
            with for_(0, passes) as step:
                width = index(1) << step.index
                plane = step.index % 2
                with for_(0, size, width * 2) as run:
                    middle, end = lesser(run.index + width, size), lesser(run.index + width * 2, size)
                    _merge(x, work, row.index, plane, (run.index, middle, end))
            last = passes % 2
            with for_(0, size) as turn:
                at = work.load(row.index, last, turn.index)
                indices.store(at, row.index, turn.index)
                values.store(x.load(row.index, cast(at, "index")), row.index, turn.index)

    def _merge(x: Ref, work: Ref, row: Val, plane: Val, run: tuple[Val, Val, Val]) -> None:
        """Two runs [start, middle) and [middle, end) of positions, each in order, into the other plane."""
        start, middle, end = run
        final = work.dim(2) - 1
        with for_(start, end, carry=[start, middle]) as turn:
            left, right = turn.carry
            first = work.load(row, plane, lesser(left, final))
            second = work.load(row, plane, lesser(right, final))
            a, b = (loaded(x, dtype, target.converts_f16, row, cast(at, "index")) for at in (first, second))
            ahead = _before(b, a, descending)
            take_left = (left < middle) & ((right >= end) | (ahead ^ 1))
            work.store(select(take_left, first, second), row, index(1) - plane, turn.index)
            turn.next([select(take_left, left + 1, left), select(take_left, right, right + 1)])

    arguments = [
        memref("x", "in", dtype, 2),
        memref("values", "out", dtype, 2),
        memref("indices", "out", "i64", 2),
        memref("work", "out", "i64", 3),
    ]
    return define(f"sort_{'down' if descending else 'up'}_{dtype}", arguments, body)


def _before(a: Num, b: Num, descending: bool) -> Val:
    """Whether ``a`` must stand before ``b`` although it comes later."""
    ahead = compare("gt" if descending else "lt", a, b)
    if a.is_float:
        nan_a, nan_b = compare("ne", a, a), compare("ne", b, b)
        ahead = ahead | ((nan_a & (nan_b ^ 1)) if descending else (nan_b & (nan_a ^ 1)))
    return Val(ahead.ssa)


def _passes(size: Val) -> Val:
    """The least p with 2^p >= size."""
    with for_(0, _LONGEST, carry=[index(0)]) as loop:
        more = (index(1) << loop.index) < size
        loop.next([select(more, loop.carry[0] + 1, loop.carry[0])])
    return loop.results[0]
