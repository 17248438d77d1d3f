"""Copy between any two views of one shape, whatever their strides: y = x.

x, y: ``dtype``, rank ``rank`` (0 is not allowed), any strides, also 0 (a broadcast x) and non-unit innermost ones.
All axes but the last are walked as one; rows x columns are split over threads. Exact.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import Ref, Val, index
from anvil.kernels.flow import for_, my_segments
from anvil.targets.base import Target


@functools.cache
def build(target: Target, rank: int, dtype: str = "f32") -> Kernel:
    def body(x: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        sizes = [y.dim(axis) for axis in range(rank)]
        rows = functools.reduce(lambda a, b: a * b, sizes[:-1], index(1))
        with my_segments(rows, sizes[-1], tid, nthreads) as (row, first, last):
            place = _unravel(row, sizes[:-1])
            with for_(first, last) as column:
                y.store(x.load(*place, column.index), *place, column.index)

    arguments = [memref("x", "in", dtype, rank, unit=False), memref("y", "out", dtype, rank, unit=False)]
    return define(f"copy_r{rank}_{dtype}", arguments, body)


def _unravel(row: Val, sizes: list[Val]) -> list[Val]:
    """The indices of element ``row`` of a row-major grid of ``sizes``."""
    place: list[Val] = []
    for size in reversed(sizes[1:]):
        place.append(row % size)
        row = row // size
    return [row, *reversed(place)] if sizes else []
