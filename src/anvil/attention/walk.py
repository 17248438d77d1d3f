"""One walk over the keys per group of query rows, with an online softmax: the kernel behind ``decode`` and its kin.

Same arithmetic as ``flash`` to the bit (:mod:`anvil.attention.online`), but one query at a time: 16 keys lie side by
side in the lanes of a vector. Keys are copied to the stack row by row, so that memory is read in order (reading it
transposed is two to three times slower), then transposed in registers, four components at a time.
Rows (batch, head, query) are split over threads; those of a thread that share a key head, up to ``_ROWS``, take a
block of keys one after the other, so that the cache is read from memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from anvil.attention.base import Operands, Visibility, arguments, finite_or_zero, nonzero, unpack
from anvil.attention.online import KEYS, PARTIAL_SUMS, finish, join
from anvil.attention.storage import Place, Row, Rows, positions, rows_of
from anvil.attention.transpose import QUAD, transposed
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
    ne,
    select,
    shuffle,
    splat,
    stack,
    tree,
)  # fmt: skip
from anvil.kernels.flow import choose, each_vector, for_, if_, in_pieces, my_range
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target

_DEPTH = 128  # components copied to the stack at a time
_COLUMNS = 4  # vectors of v held in registers at a time
_ROWS = 16  # rows that take a block of keys in turn, at most
_MAXIMUM, _TOTAL = 0, 1  # what is kept of each row between blocks


@dataclass(frozen=True)
class _Query:
    """One query row, and the stack tiles it works in."""

    rule: Visibility
    o: Operands
    values: Rows
    width: Val  # components of a value
    weights: Ref  # [KEYS] scores, then weights, of this query and a block
    bias: Ref | None  # [KEYS] of a mask
    tile: Ref  # [LANES + 1][_DEPTH]: components of 16 keys, and of q
    place: tuple[Val, Val, Val]  # batch, head, query
    out: tuple[Val, ...]  # where its row of y is
    first: Val  # visible keys: [first, last)
    last: Val


def walk(name: str, target: Target, rule: Visibility, place: Place = "whole", split: int | None = None) -> Kernel:
    """The kernel ``name`` for keys and values that lie in ``place``.

    With ``split`` the keys are cut into parts of that many positions, counted from position 0. y is then
    [B, H, S, parts, Dv + 2]: per part the sums before division, the largest score, and the sum of weights.
    """
    parameters = arguments(rule, table=place == "paged", out_rank=4 if split is None else 5)

    def body(*arguments: Ref | Val) -> None:
        o, tid, nthreads = unpack(parameters, arguments)
        weights, state = stack("f32", _ROWS, KEYS), stack("f32", 2, _ROWS)
        tile = stack("f32", LANES + 1, _DEPTH)
        bias = stack("f32", _ROWS, KEYS) if rule.mask else None
        heads, queries, kv_heads = o.q.dim(1), o.q.dim(2), greater(o.k.dim(1), index(1))
        sharing = greater(heads // kv_heads * queries, index(1))
        room = positions(o, place)
        parts = index(1) if split is None else o.y.dim(3)
        width = o.y.dim(3) if split is None else o.y.dim(4) - 2
        first, last = my_range(o.q.dim(0) * heads * queries * parts, tid, nthreads)

        with for_(first // sharing, ceil_div(last, sharing)) as unit:
            group = unit.index if split is None else unit.index // parts
            part = None if split is None else unit.index % parts

            def part_of(limits: tuple[Val, Val]) -> tuple[Val, Val]:
                if split is None or part is None:
                    return limits
                return greater(limits[0], part * split), lesser(limits[1], (part + 1) * split)

            def query_of(row: Val, slot: Val) -> _Query:
                query, batch, head = row % queries, row // queries // heads, row // queries % heads
                limits = part_of(rule.limits(cast(o.past.load(batch), "index") + query, room))
                values = rows_of(o, (batch, head // (heads // kv_heads)), place, rule.storage, target)[1]
                at = (batch, head, query)
                own = weights.at(slot, rank=1), None if bias is None else bias.at(slot, rank=1)
                return _Query(rule, o, values, width, *own, tile, at, at if part is None else (*at, part), *limits)

            begin, end = greater(first, unit.index * sharing), lesser(last, (unit.index + 1) * sharing)
            if split is not None:
                shift = (unit.index - group) * sharing
                begin, end = begin - shift, end - shift
            kv = (group // kv_heads, group % kv_heads)
            keys = rows_of(o, kv, place, rule.storage, target)[0]
            position = cast(o.past.load(kv[0]), "index")
            first_key, _ = part_of(rule.limits(position, room))
            _, last_key = part_of(rule.limits(position + (queries - 1), room))
            with for_(begin, end, _ROWS) as rows:
                count = lesser(end - rows.index, index(_ROWS))

                def each_query(body: Callable[[_Query, Val], None]) -> None:
                    with for_(0, count) as slot:
                        body(query_of(rows.index + slot.index, slot.index), slot.index)

                each_query(lambda o, slot: _begin(o, state, slot))
                with for_(first_key // KEYS * KEYS, last_key, KEYS) as block:
                    end_key = lesser(block.index + KEYS, last_key)
                    each_query(lambda o, slot: _forget(o))
                    if rule.mask:
                        each_query(lambda o, slot: _read_mask(o, block.index, end_key - block.index))
                    with for_(block.index, end_key, LANES) as some:
                        _score_keys(o, keys, some.index, some.index - block.index, last_key, tile, each_query)
                    each_query(lambda o, slot: _add_block(o, state, slot, block.index))
                each_query(lambda o, slot: (_finish if split is None else _keep)(o, state, slot))

    edges = [("T", LANES), ("T", KEYS), ("D", LANES), ("D", _COLUMNS * LANES)]
    edges += [] if split is None else [("T", split)]
    return define(name + rule.suffix, parameters, body, edges=edges)


def _begin(o: _Query, state: Ref, slot: Val) -> None:
    state.store(const(-inf, "f32"), _MAXIMUM, slot)
    state.store(const(0.0, "f32"), _TOTAL, slot)

    def clear(column: Val, mask: Val | None) -> None:
        o.o.y.store(const(0.0, "f32", lanes=LANES), *o.out, column, mask=mask)

    each_vector(0, o.width, clear)


def _forget(o: _Query) -> None:
    for group in range(0, KEYS, LANES):
        o.weights.store(const(-inf, "f32", lanes=LANES), group)


def _read_mask(o: _Query, first_key: Val, keys: Val) -> None:
    assert o.bias is not None
    for group in range(0, KEYS, LANES):
        o.bias.store(const(-inf, "f32", lanes=LANES), group)
    with for_(0, keys) as line:
        o.bias.store(o.o.bias(o.place, first_key + line.index), line.index)


def _score_keys(
    o: Operands, k: Rows, first_key: Val, place: Val, last_key: Val, tile: Ref, each_query: Callable[..., None]
) -> None:
    """scores[place ..] of 16 keys for every query, -Inf where a key is not visible."""
    size = o.q.dim(3)
    with for_(0, size, _DEPTH) as part:
        depth = lesser(size - part.index, index(_DEPTH))
        with for_(0, LANES) as row:  # rows past the last visible key repeat it: nothing else may be read
            _copy(k.row(lesser(first_key + row.index, last_key - 1), part.index), tile, row.index, depth)

        def add(one: _Query, slot: Val) -> None:
            own = Row(o.q.at(*one.place, part.index, rank=1), (), None, lambda value: value)
            _copy(own, tile, index(LANES), depth)
            zero = const(0.0, "f32", lanes=LANES)
            chain = choose(eq(part.index, 0), lambda: zero, lambda: one.weights.load(place, lanes=LANES), zero)
            one.weights.store(_dot_products(tile, depth, chain), place)

        each_query(add)

    def mask(one: _Query, slot: Val) -> None:
        keys = splat(cast(first_key, "i32")) + iota()
        visible = (keys >= splat(cast(one.first, "i32"))) & (keys < splat(cast(one.last, "i32")))
        product = one.weights.load(place, lanes=LANES)
        bias = None if one.bias is None else one.bias.load(place, lanes=LANES)
        one.weights.store(finish(one.rule, product, o.scale, o.softcap, bias, visible), place)

    each_query(mask)


def _dot_products(tile: Ref, depth: Val, chain: Val) -> Val:
    """Continue the chains of 16 keys over the components in the tile."""
    with for_(0, depth, QUAD, carry=chain) as loop:
        rows = tile.at(0, loop.index, rank=2)
        sums = loop.carry
        for lane, column in enumerate(transposed([rows.load(row, 0, lanes=QUAD) for row in range(LANES)])):
            sums = fma(splat(rows.load(LANES, lane)), column, sums)
        loop.next(sums)
    return loop.results


def _copy(source: Row, tile: Ref, row: Val, depth: Val) -> None:
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
        o.o.y.store(o.o.y.load(*o.out, column, lanes=LANES, mask=mask) / total, *o.out, column, mask=mask)

    each_vector(0, o.width, normalise)


def _keep(o: _Query, state: Ref, slot: Val) -> None:
    """What the merge needs of a part, behind its sums."""
    o.o.y.store(state.load(_MAXIMUM, slot), *o.out, o.width)
    o.o.y.store(state.load(_TOTAL, slot), *o.out, o.width + 1)


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
    begin = greater(o.first - first_key, index(0))

    def columns(places: list[Val], mask: Val | None) -> None:
        outputs = [o.o.y.load(*o.out, place, lanes=LANES, mask=mask) for place in places]
        with for_(begin, keys, carry=[output * splat(factor) for output in outputs]) as line:
            weight = splat(o.weights.load(line.index))
            row = o.values.row(first_key + line.index)
            values = [row.load(place, lanes=LANES, mask=mask) for place in places]
            sums = [fma(weight, value, chain) for value, chain in zip(values, line.carry, strict=True)]
            if o.bias is not None:
                seen = ne(o.bias.load(line.index), -inf)
                sums = [select(seen, more, chain) for more, chain in zip(sums, line.carry, strict=True)]
            line.next(sums)
        for place, output in zip(places, line.results, strict=True):
            o.o.y.store(output, *o.out, place, mask=mask)

    width = o.width
    in_pieces(
        0, width // LANES, _COLUMNS, lambda start, count: columns([(start + i) * LANES for i in range(count)], None)
    )
    whole = width - width % LANES
    with if_(whole < width):
        columns([whole], first_lanes(width - whole))
