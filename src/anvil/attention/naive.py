"""Attention as the textbook has it: y = softmax(scale q k^T) v, one query at a time, the true maximum first.

The yardstick for the other variants, not made for speed: scores are computed twice so that nothing is stored.
Dot products in 16 lanes (lane = component mod 16) joined by a fixed tree; weights are summed in order of keys.
(batch, head) rows x queries are split over threads. Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from math import inf

from anvil.attention.base import AttentionVariant, Visibility, arguments, finite_or_zero, nonzero
from anvil.kernels.base import Kernel
from anvil.kernels.define import define
from anvil.kernels.dsl import LANES, Ref, Val, cast, const, first_lanes, fma, greater, splat, tree
from anvil.kernels.flow import each_vector, for_, my_segments
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    def body(q: Ref, k: Ref, v: Ref, past: Ref, y: Ref, scale: Val, tid: Val, nthreads: Val) -> None:
        heads, size = q.dim(1), q.dim(3)
        with my_segments(q.dim(0) * heads, q.dim(2), tid, nthreads, width=1) as (row, first_query, last_query):
            batch, head = row // heads, row % heads
            kv_head = head // (heads // k.dim(1))
            with for_(first_query, last_query) as query:
                place = (batch, head, query.index)
                position = cast(past.load(batch), "index") + query.index
                first, last = visibility.limits(position, k.dim(2))

                def score(key: Val) -> Val:
                    return _dot(q, place, k, (batch, kv_head, key), size) * scale

                with for_(first, last, carry=const(-inf, "f32")) as key:
                    key.next(greater(score(key.index), key.carry))
                maximum = finite_or_zero(key.results)

                def clear(column: Val, mask: Val | None) -> None:
                    y.store(const(0.0, "f32", lanes=LANES), *place, column, mask=mask)

                each_vector(0, size, clear)
                with for_(first, last, carry=const(0.0, "f32")) as key:
                    weight = exp(score(key.index) - maximum)

                    def accumulate(column: Val, mask: Val | None) -> None:
                        value = v.load(batch, kv_head, key.index, column, lanes=LANES, mask=mask)
                        total = y.load(*place, column, lanes=LANES, mask=mask)
                        y.store(fma(splat(weight), value, total), *place, column, mask=mask)

                    each_vector(0, size, accumulate)
                    key.next(key.carry + weight)
                total_weight = splat(nonzero(key.results))

                def normalise(column: Val, mask: Val | None) -> None:
                    y.store(y.load(*place, column, lanes=LANES, mask=mask) / total_weight, *place, column, mask=mask)

                each_vector(0, size, normalise)

    return define("attention_naive" + visibility.suffix, arguments(), body, edges=[("D", LANES)])


def _dot(a: Ref, at_a: tuple[Val, ...], b: Ref, at_b: tuple[Val, ...], size: Val) -> Val:
    whole = size - size % LANES
    with for_(0, whole, LANES, carry=const(0.0, "f32", lanes=LANES)) as loop:
        left, right = a.load(*at_a, loop.index, lanes=LANES), b.load(*at_b, loop.index, lanes=LANES)
        loop.next(fma(left, right, loop.carry))
    mask = first_lanes(size - whole)
    left, right = a.load(*at_a, whole, lanes=LANES, mask=mask), b.load(*at_b, whole, lanes=LANES, mask=mask)
    return tree(fma(left, right, loop.results), lambda one, other: one + other)


VARIANT = AttentionVariant("naive", ("prefill", "decode"), build)
