"""Attention for decoding: few queries (usually one) over a long cache, with an online softmax.

Same arithmetic as ``flash`` to the bit (:mod:`anvil.attention.online`), but one query at a time: 16 keys lie side by
side in the lanes of a vector. Keys are read four components at a time and transposed in registers.
(batch, head, query) units are split over threads. Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import inf

from anvil.attention.base import AttentionVariant, Visibility, arguments, finite_or_zero, nonzero
from anvil.attention.online import KEYS, PARTIAL_SUMS, join
from anvil.kernels.base import Kernel
from anvil.kernels.define import define
from anvil.kernels.dsl import (
    LANES,
    Ref,
    Val,
    cast,
    const,
    first_lanes,
    fma,
    greater,
    index,
    iota,
    lesser,
    select,
    shuffle,
    splat,
    stack,
    tree,
)
from anvil.kernels.flow import each_vector, for_, if_, in_pieces, my_range
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target

_QUAD = 4  # components of k read at a time
_COLUMNS = 4  # vectors of v held in registers at a time


@dataclass(frozen=True)
class _Query:
    q: Ref
    k: Ref
    v: Ref
    y: Ref
    weights: Ref  # [KEYS] scores, then weights, of a block
    scale: Val
    place: tuple[Val, Val, Val]  # batch, head, query
    kv: tuple[Val, Val]  # batch, key head
    first: Val  # visible keys: [first, last)
    last: Val


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    def body(q: Ref, k: Ref, v: Ref, past: Ref, y: Ref, scale: Val, tid: Val, nthreads: Val) -> None:
        weights = stack("f32", KEYS)
        heads, queries = q.dim(1), q.dim(2)
        with for_(*my_range(q.dim(0) * heads * queries, tid, nthreads)) as unit:
            query, row = unit.index % queries, unit.index // queries
            batch, head = row // heads, row % heads
            kv_head = head // (heads // k.dim(1))
            position = cast(past.load(batch), "index") + query
            limits = visibility.limits(position, k.dim(2))
            _attend(_Query(q, k, v, y, weights, scale, (batch, head, query), (batch, kv_head), *limits))

    edges = [("T", LANES), ("T", KEYS), ("D", LANES), ("D", _COLUMNS * LANES)]
    return define("attention_decode" + visibility.suffix, arguments(), body, edges=edges)


def _attend(o: _Query) -> None:
    size = o.q.dim(3)

    def clear(column: Val, mask: Val | None) -> None:
        o.y.store(const(0.0, "f32", lanes=LANES), *o.place, column, mask=mask)

    each_vector(0, size, clear)
    with for_(o.first // KEYS * KEYS, o.last, KEYS, carry=[const(-inf, "f32"), const(0.0, "f32")]) as block:
        keys = lesser(o.last - block.index, index(KEYS))
        maximum = greater(_scores(o, block.index, keys), block.carry[0])
        factor, total = _weigh(o, block.carry[0], block.carry[1], maximum)
        _accumulate(o, block.index, keys, factor)
        block.next([maximum, total])
    total = splat(nonzero(block.results[1]))

    def normalise(column: Val, mask: Val | None) -> None:
        o.y.store(o.y.load(*o.place, column, lanes=LANES, mask=mask) / total, *o.place, column, mask=mask)

    each_vector(0, size, normalise)


def _scores(o: _Query, first_key: Val, keys: Val) -> Val:
    """Fill ``weights`` with the block's scores, -Inf where no visible key is; return their maximum."""
    nothing = const(-inf, "f32", lanes=LANES)
    for group in range(0, KEYS, LANES):
        o.weights.store(nothing, group)
    with for_(0, keys, LANES, carry=nothing) as group:
        lane_keys = splat(cast(first_key + group.index, "i32")) + iota()
        visible = (lane_keys >= splat(cast(o.first, "i32"))) & (lane_keys < splat(cast(o.last, "i32")))
        score = select(visible, _dot_products(o, first_key + group.index) * splat(o.scale), nothing)
        o.weights.store(score, group.index)
        group.next(greater(score, group.carry))
    return tree(group.results, greater)


def _dot_products(o: _Query, first_key: Val) -> Val:
    """q k of 16 keys from ``first_key``. Keys past the last visible one repeat it: nothing else may be read."""
    size = o.q.dim(3)
    whole = size - size % _QUAD
    keys = [lesser(first_key + lane, o.last - 1) for lane in range(LANES)]

    def step(component: Val, mask: Val | None, chain: Val) -> Val:
        query = o.q.load(*o.place, component, lanes=_QUAD, mask=mask)
        rows = [o.k.load(*o.kv, key, component, lanes=_QUAD, mask=mask) for key in keys]
        for lane, column in enumerate(_transpose(rows)):
            chain = fma(splat(query[lane]), column, chain)
        return chain

    with for_(0, whole, _QUAD, carry=const(0.0, "f32", lanes=LANES)) as loop:
        loop.next(step(loop.index, None, loop.carry))
    with for_(whole, size, _QUAD, carry=loop.results) as tail:
        tail.next(step(whole, first_lanes(size - whole, _QUAD), tail.carry))
    return tail.results


def _transpose(rows: list[Val]) -> list[Val]:
    """16 vectors of 4 -> 4 vectors of 16: quads side by side first, then 4 x 4 transposes inside groups of 4 lanes."""
    joined = []
    for first in range(_QUAD):
        quads = rows[first::_QUAD]
        low, high = (shuffle(quads[i], quads[i + 1], range(2 * _QUAD)) for i in (0, 2))
        joined.append(shuffle(low, high, range(LANES)))
    groups = range(0, LANES, _QUAD)
    unpack_low = [lane for g in groups for lane in (g, g + LANES, g + 1, g + 1 + LANES)]
    unpack_high = [lane for g in groups for lane in (g + 2, g + 2 + LANES, g + 3, g + 3 + LANES)]
    low_pairs = [lane for g in groups for lane in (g, g + 1, g + LANES, g + 1 + LANES)]
    high_pairs = [lane for g in groups for lane in (g + 2, g + 3, g + 2 + LANES, g + 3 + LANES)]
    a, b, c, d = joined
    low_ab, low_cd = shuffle(a, b, unpack_low), shuffle(c, d, unpack_low)
    high_ab, high_cd = shuffle(a, b, unpack_high), shuffle(c, d, unpack_high)
    pairs = ((low_ab, low_cd, low_pairs), (low_ab, low_cd, high_pairs))
    pairs += ((high_ab, high_cd, low_pairs), (high_ab, high_cd, high_pairs))
    return [shuffle(left, right, lanes) for left, right, lanes in pairs]


def _weigh(o: _Query, old_maximum: Val, total: Val, maximum: Val) -> tuple[Val, Val]:
    """Turn scores into weights; return the factor of what came before and the new sum of weights."""
    base = finite_or_zero(maximum)
    factor = exp(old_maximum - base)
    partial = const(0.0, "f32", lanes=PARTIAL_SUMS)
    for group in range(0, KEYS, LANES):
        weight = exp(o.weights.load(group, lanes=LANES) - splat(base))
        o.weights.store(weight, group)
        for quad in range(0, LANES, PARTIAL_SUMS):
            partial = partial + shuffle(weight, weight, range(quad, quad + PARTIAL_SUMS))
    return factor, fma(total, factor, join([partial[lane] for lane in range(PARTIAL_SUMS)]))


def _accumulate(o: _Query, first_key: Val, keys: Val, factor: Val) -> None:
    """y = y factor + weights v over the visible keys of the block."""
    size = o.q.dim(3)
    begin = greater(o.first - first_key, index(0))

    def columns(places: list[Val], mask: Val | None) -> None:
        outputs = [o.y.load(*o.place, place, lanes=LANES, mask=mask) for place in places]
        with for_(begin, keys, carry=[output * splat(factor) for output in outputs]) as line:
            weight = splat(o.weights.load(line.index))
            key = first_key + line.index
            values = [o.v.load(*o.kv, key, place, lanes=LANES, mask=mask) for place in places]
            line.next([fma(weight, value, chain) for value, chain in zip(values, line.carry, strict=True)])
        for place, output in zip(places, line.results, strict=True):
            o.y.store(output, *o.place, place, mask=mask)

    in_pieces(
        0, size // LANES, _COLUMNS, lambda start, count: columns([(start + i) * LANES for i in range(count)], None)
    )
    whole = size - size % LANES
    with if_(whole < size):
        columns([whole], first_lanes(size - whole))


VARIANT = AttentionVariant("decode", ("decode",), build)
