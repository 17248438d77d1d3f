"""Attention for decoding: few queries (usually one) over a long cache, with an online softmax.

Same arithmetic as ``flash`` to the bit (:mod:`anvil.attention.online`), but one query at a time: 16 keys lie side by
side in the lanes of a vector. Keys are copied to the stack row by row, so that memory is read in order (reading it
transposed is two to three times slower), then transposed in registers, four components at a time.
Rows (batch, head, query) are split over threads; those of a thread that share a key head, up to ``_ROWS``, take a
block of keys one after the other, so that the cache is read from memory once.
Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    ceil_div,
    const,
    eq,
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
from anvil.kernels.flow import choose, each_vector, for_, if_, in_pieces, my_range
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target

_DEPTH = 128  # components copied to the stack at a time
_QUAD = 4  # components transposed at a time
_COLUMNS = 4  # vectors of v held in registers at a time
_ROWS = 16  # rows that take a block of keys in turn, at most
_MAXIMUM, _TOTAL = 0, 1  # what is kept of each row between blocks


@dataclass(frozen=True)
class _Query:
    q: Ref
    k: Ref
    v: Ref
    y: Ref
    weights: Ref  # [KEYS] scores, then weights, of this query and a block
    tile: Ref  # [LANES + 1][_DEPTH]: components of 16 keys, and of q
    scale: Val
    place: tuple[Val, Val, Val]  # batch, head, query
    kv: tuple[Val, Val]  # batch, key head
    first: Val  # visible keys: [first, last)
    last: Val


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    def body(q: Ref, k: Ref, v: Ref, past: Ref, y: Ref, scale: Val, tid: Val, nthreads: Val) -> None:
        weights, state = stack("f32", _ROWS, KEYS), stack("f32", 2, _ROWS)
        tile = stack("f32", LANES + 1, _DEPTH)
        heads, queries, kv_heads = q.dim(1), q.dim(2), greater(k.dim(1), index(1))
        sharing = greater(heads // kv_heads * queries, index(1))

        def query_of(row: Val, slot: Val) -> _Query:
            query, batch, head = row % queries, row // queries // heads, row // queries % heads
            limits = visibility.limits(cast(past.load(batch), "index") + query, k.dim(2))
            kv = (batch, head // (heads // kv_heads))
            return _Query(q, k, v, y, weights.at(slot, rank=1), tile, scale, (batch, head, query), kv, *limits)

        first, last = my_range(q.dim(0) * heads * queries, tid, nthreads)
        with for_(first // sharing, ceil_div(last, sharing)) as group:
            begin = greater(first, group.index * sharing)
            end = lesser(last, (group.index + 1) * sharing)
            kv = (group.index // kv_heads, group.index % kv_heads)
            position = cast(past.load(kv[0]), "index")
            first_key, _ = visibility.limits(position, k.dim(2))
            _, last_key = visibility.limits(position + (queries - 1), k.dim(2))
            with for_(begin, end, _ROWS) as rows:
                count = lesser(end - rows.index, index(_ROWS))

                def each_query(body: Callable[[_Query, Val], None]) -> None:
                    with for_(0, count) as slot:
                        body(query_of(rows.index + slot.index, slot.index), slot.index)

                each_query(lambda o, slot: _begin(o, state, slot))
                with for_(first_key // KEYS * KEYS, last_key, KEYS) as block:
                    each_query(lambda o, slot: _forget(o))
                    with for_(block.index, lesser(block.index + KEYS, last_key), LANES) as keys:
                        _score_keys(k.at(*kv, rank=2), keys.index, keys.index - block.index, last_key, tile, each_query)
                    each_query(lambda o, slot: _add_block(o, state, slot, block.index))
                each_query(lambda o, slot: _finish(o, state, slot))

    edges = [("T", LANES), ("T", KEYS), ("D", LANES), ("D", _COLUMNS * LANES)]
    return define("attention_decode" + visibility.suffix, arguments(), body, edges=edges)


def _begin(o: _Query, state: Ref, slot: Val) -> None:
    state.store(const(-inf, "f32"), _MAXIMUM, slot)
    state.store(const(0.0, "f32"), _TOTAL, slot)

    def clear(column: Val, mask: Val | None) -> None:
        o.y.store(const(0.0, "f32", lanes=LANES), *o.place, column, mask=mask)

    each_vector(0, o.q.dim(3), clear)


def _forget(o: _Query) -> None:
    for group in range(0, KEYS, LANES):
        o.weights.store(const(-inf, "f32", lanes=LANES), group)


def _score_keys(
    k: Ref, first_key: Val, place: Val, last_key: Val, tile: Ref, each_query: Callable[[Callable[..., None]], None]
) -> None:
    """scores[place ..] = q k scale of 16 keys for every query, -Inf where a key is not visible."""
    size = k.dim(1)
    with for_(0, size, _DEPTH) as part:
        depth = lesser(size - part.index, index(_DEPTH))
        with for_(0, LANES) as row:  # rows past the last visible key repeat it: nothing else may be read
            _copy(k.at(lesser(first_key + row.index, last_key - 1), part.index, rank=1), tile, row.index, depth)

        def add(o: _Query, slot: Val) -> None:
            _copy(o.q.at(*o.place, part.index, rank=1), tile, index(LANES), depth)
            zero = const(0.0, "f32", lanes=LANES)
            chain = choose(eq(part.index, 0), lambda: zero, lambda: o.weights.load(place, lanes=LANES), zero)
            o.weights.store(_dot_products(tile, depth, chain), place)

        each_query(add)

    def mask(o: _Query, slot: Val) -> None:
        keys = splat(cast(first_key, "i32")) + iota()
        visible = (keys >= splat(cast(o.first, "i32"))) & (keys < splat(cast(o.last, "i32")))
        score = o.weights.load(place, lanes=LANES) * splat(o.scale)
        o.weights.store(select(visible, score, const(-inf, "f32", lanes=LANES)), place)

    each_query(mask)


def _dot_products(tile: Ref, depth: Val, chain: Val) -> Val:
    """Continue the chains of 16 keys over the components in the tile."""
    with for_(0, depth, _QUAD, carry=chain) as loop:
        rows = tile.at(0, loop.index, rank=2)
        sums = loop.carry
        for lane, column in enumerate(_transpose([rows.load(row, 0, lanes=_QUAD) for row in range(LANES)])):
            sums = fma(splat(rows.load(LANES, lane)), column, sums)
        loop.next(sums)
    return loop.results


def _copy(source: Ref, tile: Ref, row: Val, depth: Val) -> None:
    """Copy ``depth`` elements to a row of the tile, and zeros up to the next whole vector."""
    each_vector(0, depth, lambda place, mask: tile.store(source.load(place, lanes=LANES, mask=mask), row, place))


def _add_block(o: _Query, state: Ref, slot: Val, first_key: Val) -> None:
    keys = lesser(o.last - first_key, index(KEYS))
    old_maximum, old_total = state.load(_MAXIMUM, slot), state.load(_TOTAL, slot)
    best = const(-inf, "f32", lanes=LANES)
    for group in range(0, KEYS, LANES):
        best = greater(o.weights.load(group, lanes=LANES), best)
    maximum = greater(tree(best, greater), old_maximum)
    factor, total = _weigh(o, old_maximum, old_total, maximum)
    _accumulate(o, first_key, keys, factor)
    state.store(maximum, _MAXIMUM, slot)
    state.store(total, _TOTAL, slot)


def _finish(o: _Query, state: Ref, slot: Val) -> None:
    total = splat(nonzero(state.load(_TOTAL, slot)))

    def normalise(column: Val, mask: Val | None) -> None:
        o.y.store(o.y.load(*o.place, column, lanes=LANES, mask=mask) / total, *o.place, column, mask=mask)

    each_vector(0, o.q.dim(3), normalise)


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
