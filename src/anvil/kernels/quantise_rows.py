"""Rows of activations as 8-bit integers with one scale per row: x[m, k] is about scale[m] codes[m, k].

x: f32 [M, K]; codes: i8 [M, B], B = K rounded up to whole blocks; scale: f32 [M].

scale = max |x| / 127, code = x / scale rounded half to even and saturated to -127 .. 127, both in f32, so a row's codes
depend on that row alone. A row of zeros has scale 0 and codes 0; one with an infinity or NaN has scale NaN. Codes
behind the end of a row are 0. ``offset`` is added to every code, for instructions that take unsigned ones.
"""

from __future__ import annotations

import functools
from math import nan

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import (
    LANES,
    Ref,
    Val,
    cast,
    const,
    eq,
    first_lanes,
    greater,
    lesser,
    magnitude,
    select,
    splat,
    tree,
)
from anvil.kernels.flow import for_, if_, my_segments
from anvil.targets.base import Target

BLOCK = 32  # codes of a row come in whole blocks
_LARGEST = 127  # -128 is no code: its magnitude does not fit, see anvil.kernels.dots
_SEGMENT = 128  # columns a thread writes at least
_INFINITY = 0x7F800000  # magnitudes from here on are no finite numbers
_ROUND = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, held in the low bits


@functools.cache
def build(target: Target, offset: int = 0) -> Kernel:
    """The kernel; ``target`` is of no consequence, all have the same."""

    def body(x: Ref, codes: Ref, scale: Ref, tid: Val, nthreads: Val) -> None:
        inputs = x.dim(1)
        with my_segments(codes.dim(0), codes.dim(1), tid, nthreads, width=_SEGMENT) as (row, first, last):
            largest = _largest_magnitude(x, row, inputs)
            own = select(largest < _INFINITY, largest.bits("f32") / float(_LARGEST), const(nan, "f32"))
            with if_(eq(first, 0)):
                scale.store(own, row)
            with for_(first, last, LANES) as column:
                begin = lesser(column.index, inputs)
                value = x.load(row, begin, lanes=LANES, mask=first_lanes(inputs - begin))
                codes.store(_codes(value, own, offset), row, column.index)

    arguments = [memref("x", "in", "f32", 2), memref("codes", "out", "i8", 2), memref("scale", "out", "f32", 1)]
    return define(f"quantise_rows_{offset}", arguments, body, edges=[("M", 1), ("K", LANES), ("K", BLOCK)])


def _largest_magnitude(x: Ref, row: Val, inputs: Val) -> Val:
    """The bits of the largest |x| of a row as an integer: infinity and NaN are larger than every number."""

    def bits(column: Val, mask: Val | None = None) -> Val:
        return magnitude(x.load(row, column, lanes=LANES, mask=mask)).bits("i32")

    whole = inputs - inputs % LANES
    with for_(0, whole, LANES, carry=const(0, "i32", lanes=LANES)) as loop:
        loop.next(greater(bits(loop.index), loop.carry))
    return tree(greater(bits(whole, first_lanes(inputs - whole)), loop.results), greater)


def _codes(value: Val, scale: Val, offset: int) -> Val:
    """i8 codes of f32 lanes."""
    quotient = value / splat(scale)
    number = select(eq(quotient, quotient), quotient, const(0.0, value.type))  # 0 / 0
    bounded = greater(lesser(number, const(_LARGEST, value.type)), const(-_LARGEST, value.type))
    integer = (bounded + _ROUND).bits("i32") - const(_ROUND, value.type).bits("i32")
    return cast(integer + offset, "i8")
