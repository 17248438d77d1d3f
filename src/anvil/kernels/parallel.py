"""How kernels cover their outputs: every thread takes one contiguous part, and rows are walked in whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anvil.kernels.dsl import LANES, Val, ceil_div, first_lanes, for_, greater, if_, index, lesser


def my_range(count: Val, tid: Val, nthreads: Val) -> tuple[Val, Val]:
    """The contiguous part [first, last) of ``range(count)`` that thread ``tid`` of ``nthreads`` works on."""
    return count * tid // nthreads, count * (tid + 1) // nthreads


@contextmanager
def my_segments(
    rows: Val, columns: Val, tid: Val, nthreads: Val, width: int = LANES
) -> Iterator[tuple[Val, Val, Val]]:
    """Loop over this thread's part of a ``rows`` x ``columns`` grid: (row, first column, last column) per row touched.

    The grid is cut, row after row, into blocks of ``width`` columns, so one long row is shared like many short ones.
    """
    blocks = greater(ceil_div(columns, width), index(1))
    first, last = my_range(rows * blocks, tid, nthreads)
    with for_(first // blocks, ceil_div(last, blocks)) as loop:
        done = loop.index * blocks
        begin = greater(first - done, index(0)) * width
        end = lesser(lesser(last - done, blocks) * width, columns)
        yield loop.index, begin, end


def each_vector(first: Val, last: Val, body: Callable[[Val, Val | None], None], lanes: int = LANES) -> None:
    """Emit ``body(column, mask)`` for whole vectors of ``range(first, last)`` (mask None) and for the tail, if any."""
    whole = last - (last - first) % lanes
    with for_(first, whole, lanes) as loop:
        body(loop.index, None)
    with if_(whole < last):
        body(whole, first_lanes(last - whole, lanes))
