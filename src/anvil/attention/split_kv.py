"""Flash-decoding: the keys are cut into parts of ``SPLIT`` positions, each part is attended to by itself, then merged.

So a few query rows over a long cache keep every thread busy. Where the cuts are depends on positions alone, never on
the number of threads. The parts are computed by :mod:`anvil.attention.walk`; up to ``SPLIT`` keys the bits are those of
``decode``, beyond that the merge rounds a few times more. Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from math import inf

from anvil.attention.base import AttentionVariant, Visibility, finite_or_zero, nonzero
from anvil.attention.walk import walk
from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val, const, fma, greater, splat
from anvil.kernels.flow import each_vector, for_, my_segments
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target

SPLIT = 256  # positions of a part: a few blocks of keys


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    return walk("attention_split_kv", target, visibility, split=SPLIT)


@functools.cache
def merge(target: Target) -> Kernel:
    """y [B, H, S, Dv] from parts [B, H, S, parts, Dv + 2] (see :func:`anvil.attention.walk.walk`).

    With m the largest score of all parts, y = sum e^(m_i - m) sums_i / sum e^(m_i - m) total_i, in order of parts. A
    part without visible keys has m_i = -Inf and counts nothing; a row without any is zeros.
    """

    def body(parts: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        heads, count, width = y.dim(1), parts.dim(3), y.dim(3)
        rows = y.dim(0) * heads
        with my_segments(rows, y.dim(2), tid, nthreads, width=1) as (row, first, last), for_(first, last) as query:
            place = (row // heads, row % heads, query.index)
            with for_(0, count, carry=const(-inf, "f32")) as part:
                part.next(greater(parts.load(*place, part.index, width), part.carry))
            base = finite_or_zero(part.results)

            def factor(number: Val) -> Val:
                return exp(parts.load(*place, number, width) - base)

            with for_(0, count, carry=const(0.0, "f32")) as part:
                part.next(fma(parts.load(*place, part.index, width + 1), factor(part.index), part.carry))
            total = splat(nonzero(part.results))

            def columns(column: Val, mask: Val | None) -> None:
                with for_(0, count, carry=const(0.0, "f32", lanes=LANES)) as part:
                    sums = parts.load(*place, part.index, column, lanes=LANES, mask=mask)
                    part.next(fma(sums, splat(factor(part.index)), part.carry))
                y.store(part.results / total, *place, column, mask=mask)

            each_vector(0, width, columns)

    arguments = [memref("parts", "in", "f32", 5), memref("y", "out", "f32", 4)]
    return define("attention_merge", arguments, body, edges=[("D", LANES)])


VARIANT = AttentionVariant("split_kv", ("decode",), build, split=SPLIT, merge=merge)
