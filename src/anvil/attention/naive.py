"""Attention as the textbook has it: y = softmax(scale q k^T) v, one query at a time, the true maximum first.

The yardstick for the other variants, not made for speed: scores are computed twice so that nothing is stored.
Dot products in 16 lanes (lane = component mod 16) joined by a fixed tree; weights are summed in order of keys.
(batch, head) rows x queries are split over threads. Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from math import inf

from anvil.attention.base import AttentionVariant, Visibility, arguments, finite_or_zero, nonzero, unpack
from anvil.attention.online import finish
from anvil.attention.storage import Row, rows_of
from anvil.kernels.base import Kernel
from anvil.kernels.define import define
from anvil.kernels.dsl import LANES, Ref, Val, cast, const, first_lanes, fma, greater, index, ne, splat, tree
from anvil.kernels.flow import each_vector, for_, if_, my_segments
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    parameters = arguments(visibility)

    def body(*values: Ref | Val) -> None:
        o, tid, nthreads = unpack(parameters, values)
        heads, size, width = o.q.dim(1), o.q.dim(3), o.v.dim(3)
        with my_segments(o.q.dim(0) * heads, o.q.dim(2), tid, nthreads, width=1) as (row, first_query, last_query):
            batch, head = row // heads, row % heads
            k_rows, v_rows = rows_of(o, (batch, head // (heads // o.k.dim(1))), "whole", visibility.storage, target)
            with for_(first_query, last_query) as query:
                place = (batch, head, query.index)
                position = cast(o.past.load(batch), "index") + query.index
                first, last = visibility.limits(position, o.k.dim(2))

                def score(key: Val) -> Val:
                    product = dot(Row(o.q, place, None, lambda value: value), k_rows.row(key), size)
                    bias = o.bias(place, key) if visibility.mask else None
                    return finish(visibility, product, o.scale, o.softcap, bias, None)

                with for_(first, last, carry=const(-inf, "f32")) as key:
                    key.next(greater(score(key.index), key.carry))
                maximum = finite_or_zero(key.results)

                def clear(column: Val, mask: Val | None) -> None:
                    o.y.store(const(0.0, "f32", lanes=LANES), *place, column, mask=mask)

                each_vector(0, width, clear)
                with for_(first, last, carry=const(0.0, "f32")) as key:
                    weight = exp(score(key.index) - maximum)

                    def accumulate(column: Val, mask: Val | None) -> None:
                        value = v_rows.row(key.index).load(column, lanes=LANES, mask=mask)
                        total = o.y.load(*place, column, lanes=LANES, mask=mask)
                        o.y.store(fma(splat(weight), value, total), *place, column, mask=mask)

                    if visibility.mask:
                        with if_(ne(o.bias(place, key.index), -inf)):
                            each_vector(0, width, accumulate)
                    else:
                        each_vector(0, width, accumulate)
                    key.next(key.carry + weight)
                total_weight = splat(nonzero(key.results))

                def normalise(column: Val, mask: Val | None) -> None:
                    total = o.y.load(*place, column, lanes=LANES, mask=mask)
                    o.y.store(total / total_weight, *place, column, mask=mask)

                each_vector(0, width, normalise)

    return define("attention_naive" + visibility.suffix, parameters, body, edges=[("D", LANES)])


def dot(a: Row, b: Row, size: Val) -> Val:
    """Sum of products of two rows of ``size`` components."""
    whole = size - size % LANES
    with for_(index(0), whole, LANES, carry=const(0.0, "f32", lanes=LANES)) as loop:
        left, right = a.load(loop.index, lanes=LANES), b.load(loop.index, lanes=LANES)
        loop.next(fma(left, right, loop.carry))
    mask = first_lanes(size - whole)
    left, right = a.load(whole, lanes=LANES, mask=mask), b.load(whole, lanes=LANES, mask=mask)
    return tree(fma(left, right, loop.results), lambda one, other: one + other)


VARIANT = AttentionVariant("naive", ("prefill", "decode"), build)
