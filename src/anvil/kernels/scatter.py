"""Elements put where an index says: y[place[m]] = combine(y[place[m]], src[m]), in the order of m.

place: i64 [M], places outside of y are left out; src [M]; y [N], the same type, holds what elements are combined with.
Every thread owns a part of y and walks all of ``place``: the order of combination never depends on threads. 16-bit
floats are combined in f32 and rounded each time, as PyTorch does.
"""

from __future__ import annotations

import functools

from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import Ref, Val, cast
from anvil.kernels.flow import for_, if_, my_range
from anvil.lower.generic.elements import loaded, stored
from anvil.lower.generic.num import Num, maximum, minimum
from anvil.targets.base import Target


def _sum(old: Num, new: Num) -> Num:
    return old | new if old.dtype == "i1" else old + new


def _product(old: Num, new: Num) -> Num:
    return old & new if old.dtype == "i1" else old * new


_COMBINE = {
    "set": lambda old, new: new,
    "sum": _sum,
    "prod": _product,
    "amax": maximum,
    "amin": minimum,
}


@functools.cache
def build(target: Target, dtype: str, reduce: str) -> Kernel:
    """``reduce``: set, sum, prod, amax or amin."""
    f16 = target.converts_f16

    def body(place: Ref, src: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        first, last = my_range(y.dim(0), tid, nthreads)
        with for_(0, place.dim(0)) as turn:
            at = cast(place.load(turn.index), "index")
            with if_((at >= first) & (at < last)):
                new, old = loaded(src, dtype, f16, turn.index), loaded(y, dtype, f16, at)
                stored(y, _COMBINE[reduce](old, new), dtype, f16, at)

    arguments = [memref("place", "in", "i64", 1), memref("src", "in", dtype, 1), memref("y", "out", dtype, 1)]
    return define(f"scatter_{reduce}_{dtype}", arguments, body)
