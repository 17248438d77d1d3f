"""``naive`` for a block of neighbouring queries at a time: each key and value is loaded once for all of them.

Same arithmetic to the bit. A unit of work is up to ``_QUERIES`` queries of one head; a key that only some of them see
is computed for all and counted where it is visible. Units are dealt to threads in turn, as causal blocks grow.
Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from math import inf

from anvil.attention.base import AttentionVariant, Operands, Visibility, arguments, finite_or_zero, nonzero, unpack
from anvil.attention.online import finish
from anvil.attention.storage import Row, Rows, rows_of
from anvil.kernels.base import Kernel
from anvil.kernels.define import define
from anvil.kernels.dsl import (
    LANES,
    Ref,
    Val,
    cast,
    ceil_div,
    const,
    first_lanes,
    fma,
    greater,
    index,
    lesser,
    ne,
    select,
    splat,
    tree,
)  # fmt: skip
from anvil.kernels.flow import each_vector, for_, if_
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target

_QUERIES = 4  # whose sums are held in registers at a time


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    parameters = arguments(visibility)

    def body(*values: Ref | Val) -> None:
        o, tid, nthreads = unpack(parameters, values)
        heads, per_head = o.q.dim(1), ceil_div(o.q.dim(2), _QUERIES)
        with for_(tid, o.q.dim(0) * heads * per_head, nthreads) as unit:
            row = unit.index // per_head
            batch, head = row // heads, row % heads
            rows = rows_of(o, (batch, head // (heads // o.k.dim(1))), "whole", visibility.storage, target)
            first = unit.index % per_head * _QUERIES
            count = lesser(o.q.dim(2) - first, index(_QUERIES))
            with if_(count >= _QUERIES):
                _attend(visibility, o, rows, [(batch, head, first + number) for number in range(_QUERIES)])
            with if_(count < _QUERIES), for_(first, first + count) as query:
                _attend(visibility, o, rows, [(batch, head, query.index)])

    edges = [("S", _QUERIES), ("D", LANES)]
    return define("attention_blocked" + visibility.suffix, parameters, body, edges=edges)


def _attend(rule: Visibility, o: Operands, rows: tuple[Rows, Rows], places: list[tuple[Val, Val, Val]]) -> None:
    """Attention of the queries at ``places``, in three walks: largest scores, weights and sums, quotients."""
    k_rows, v_rows = rows
    past = cast(o.past.load(places[0][0]), "index")
    limits = [rule.limits(past + query, o.k.dim(2)) for _, _, query in places]
    first, last = limits[0][0], limits[-1][1]

    def scores(key: Val) -> list[Val]:
        found = []
        for place, product, (low, high) in zip(places, _dots(o, places, k_rows.row(key)), limits, strict=True):
            bias = o.bias(place, key) if rule.mask else None
            found.append(finish(rule, product, o.scale, o.softcap, bias, (key >= low) & (key < high)))
        return found

    with for_(first, last, carry=[const(-inf, "f32")] * len(places)) as key:
        key.next([greater(score, best) for score, best in zip(scores(key.index), key.carry, strict=True)])
    maxima = [finite_or_zero(best) for best in key.results]
    for place in places:
        each_vector(0, o.v.dim(3), lambda column, mask, p=place: _clear(o, p, column, mask))
    with for_(first, last, carry=[const(0.0, "f32")] * len(places)) as key:
        weights = [exp(score - best) for score, best in zip(scores(key.index), maxima, strict=True)]
        seen = [(key.index >= low) & (key.index < high) for low, high in limits]
        if rule.mask:
            seen = [one & ne(o.bias(place, key.index), -inf) for one, place in zip(seen, places, strict=True)]

        def accumulate(column: Val, mask: Val | None) -> None:
            value = v_rows.row(key.index).load(column, lanes=LANES, mask=mask)
            for place, weight, visible in zip(places, weights, seen, strict=True):
                total = o.y.load(*place, column, lanes=LANES, mask=mask)
                more = select(visible, fma(splat(weight), value, total), total)
                o.y.store(more, *place, column, mask=mask)

        each_vector(0, o.v.dim(3), accumulate)
        counted = [select(visible, weight, const(0.0, "f32")) for visible, weight in zip(seen, weights, strict=True)]
        key.next([total + weight for total, weight in zip(key.carry, counted, strict=True)])
    for place, total in zip(places, key.results, strict=True):
        divisor = splat(nonzero(total))
        each_vector(0, o.v.dim(3), lambda column, mask, p=place, d=divisor: _divide(o, p, d, column, mask))


def _dots(o: Operands, places: list[tuple[Val, Val, Val]], key: Row) -> list[Val]:
    """q k of every query, each in 16 lanes joined by a tree; the key is loaded once."""
    size = o.q.dim(3)
    whole = size - size % LANES

    def more(column: Val, mask: Val | None, sums: list[Val]) -> list[Val]:
        right = key.load(column, lanes=LANES, mask=mask)
        lefts = [o.q.load(*place, column, lanes=LANES, mask=mask) for place in places]
        return [fma(left, right, chain) for left, chain in zip(lefts, sums, strict=True)]

    with for_(0, whole, LANES, carry=[const(0.0, "f32", lanes=LANES)] * len(places)) as loop:
        loop.next(more(loop.index, None, loop.carry))
    sums = more(whole, first_lanes(size - whole), loop.results)
    return [tree(total, lambda one, other: one + other) for total in sums]


def _clear(o: Operands, place: tuple[Val, Val, Val], column: Val, mask: Val | None) -> None:
    o.y.store(const(0.0, "f32", lanes=LANES), *place, column, mask=mask)


def _divide(o: Operands, place: tuple[Val, Val, Val], divisor: Val, column: Val, mask: Val | None) -> None:
    o.y.store(o.y.load(*place, column, lanes=LANES, mask=mask) / divisor, *place, column, mask=mask)


VARIANT = AttentionVariant("blocked", ("prefill", "decode"), build)
