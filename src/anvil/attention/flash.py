"""Attention for prefill, blocked over queries and keys with an online softmax (:mod:`anvil.attention.online`).

A unit of work is one head's tile of 16 neighbouring queries, which lie side by side in the lanes of a vector:
scores, maxima, weights and sums of all queries of the tile then need no operation across lanes. q is transposed onto
the stack (once if D <= ``_DEPTH``, else per block of keys); keys and values are read as they lie in memory; y holds the
unnormalised output between blocks. Units are dealt to threads in turn, as causal tiles grow along the sequence.
Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from anvil.attention.base import AttentionVariant, Operands, Visibility, arguments, finite_or_zero, nonzero, unpack
from anvil.attention.online import KEYS, PARTIAL_SUMS, finish, join
from anvil.attention.storage import Place, Rows, positions, rows_of
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
    fma,
    greater,
    index,
    iota,
    lesser,
    ne,
    select,
    splat,
    stack,
)
from anvil.kernels.flow import choose, each_vector, for_, if_, in_pieces, unrolled
from anvil.kernels.mathlib.exponential import exp
from anvil.targets.base import Target

_DEPTH = 128  # components of q held transposed at a time
_UNROLL = 4  # components taken in one turn of a loop


@dataclass(frozen=True)
class _Unit:
    """One head's tile of queries, and the stack tiles it works in (lanes are queries)."""

    o: Operands
    keys: Rows
    values: Rows
    visibility: Visibility
    room: Val  # positions that the keys have room for
    tile_rows: int  # keys or queries whose chains are held in registers at a time
    transposed: Ref  # [_DEPTH][LANES] of q
    scores: Ref  # [KEYS][LANES]
    row: Ref  # [LANES]
    bias: Ref | None  # [KEYS][LANES] of a mask
    batch: Val
    head: Val
    first: Val  # query
    count: Val  # queries
    position: Val  # of the first query

    def limits(self, query: Val) -> tuple[Val, Val]:
        """Visible keys of a query of the tile."""
        return self.visibility.limits(self.position + query, self.room)


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    return flash("attention_flash", target, visibility)


def flash(name: str, target: Target, visibility: Visibility, place: Place = "whole") -> Kernel:
    """The kernel for keys and values that lie in ``place``."""
    tile_rows = 8 if target.lanes(32) >= LANES else 4
    parameters = arguments(visibility, table=place == "paged")

    def body(*values: Ref | Val) -> None:
        o, tid, nthreads = unpack(parameters, values)
        tiles = stack("f32", _DEPTH, LANES), stack("f32", KEYS, LANES), stack("f32", LANES)
        bias = stack("f32", KEYS, LANES) if visibility.mask else None
        heads, per_head = o.q.dim(1), ceil_div(o.q.dim(2), LANES)
        room = positions(o, place)
        with for_(tid, o.q.dim(0) * heads * per_head, nthreads) as unit:
            batch, head = unit.index // per_head // heads, unit.index // per_head % heads
            rows = rows_of(o, (batch, head // (heads // o.k.dim(1))), place, visibility.storage, target)
            first = unit.index % per_head * LANES
            position = cast(o.past.load(batch), "index") + first
            count = lesser(o.q.dim(2) - first, index(LANES))
            where = (batch, head, first, count, position)
            _attend(_Unit(o, *rows, visibility, room, tile_rows, *tiles, bias, *where))

    edges = [("S", LANES), ("T", KEYS), ("D", LANES), ("D", _DEPTH)]
    return define(name + visibility.suffix, parameters, body, edges=edges)


def _attend(u: _Unit) -> None:
    def clear(query: Val, column: Val, mask: Val | None) -> None:
        u.o.y.store(const(0.0, "f32", lanes=LANES), u.batch, u.head, u.first + query, column, mask=mask)

    _each_row_vector(u, clear)
    depth = u.o.q.dim(3)
    with if_(depth <= _DEPTH):
        _transpose(u, index(0), depth)
    first_key, _ = u.limits(index(0))
    _, last_key = u.limits(u.count - 1)
    start = [const(-inf, "f32", lanes=LANES), const(0.0, "f32", lanes=LANES)]
    with for_(first_key // KEYS * KEYS, last_key, KEYS, carry=start) as block:
        keys = lesser(last_key - block.index, index(KEYS))
        _dot_products(u, block.index, keys)
        if u.bias is not None:
            _read_mask(u, u.bias, block.index, keys)
        maximum = _mask(u, block.index, keys, block.carry[0])
        total = _weigh(u, keys, block.carry[0], block.carry[1], maximum)
        _accumulate(u, block.index, keys)
        block.next([maximum, total])
    u.row.store(nonzero(block.results[1]), 0)

    def normalise(query: Val, column: Val, mask: Val | None) -> None:
        place = (u.batch, u.head, u.first + query, column)
        total = splat(u.row.load(query))
        u.o.y.store(u.o.y.load(*place, lanes=LANES, mask=mask) / total, *place, mask=mask)

    _each_row_vector(u, normalise)


def _transpose(u: _Unit, component: Val, depth: Val) -> None:
    """Components [component, component + depth) of the tile's q, queries side by side; missing queries are 0."""
    with if_(u.count < LANES), for_(0, depth) as d:
        u.transposed.store(const(0.0, "f32", lanes=LANES), d.index, 0)
    with for_(0, u.count) as query, for_(0, depth) as d:
        value = u.o.q.load(u.batch, u.head, u.first + query.index, component + d.index)
        u.transposed.store(value, d.index, query.index)


def _dot_products(u: _Unit, first_key: Val, keys: Val) -> None:
    """scores[key][query] = q k, a tile of keys at a time."""
    size = u.o.q.dim(3)
    with for_(0, size, _DEPTH) as part:
        depth = lesser(size - part.index, index(_DEPTH))
        with if_(size > _DEPTH):
            _transpose(u, part.index, depth)

        def tile(start: Val, rows: int) -> None:
            lines = [start + row for row in range(rows)]
            zeros = [const(0.0, "f32", lanes=LANES)] * rows
            so_far = choose(
                eq(part.index, 0), lambda: zeros, lambda: [u.scores.load(r, 0, lanes=LANES) for r in lines], zeros
            )

            def step(base: Val, offset: int, chains: list[Val]) -> list[Val]:
                queries = u.transposed.at(base, rank=2).load(offset, 0, lanes=LANES)
                k_row = u.keys.block(first_key + start, part.index + base)
                values = [splat(k_row(row).load(offset)) for row in range(rows)]
                return [fma(value, queries, chain) for value, chain in zip(values, chains, strict=True)]

            chains = unrolled(depth, _UNROLL, so_far, step)
            for line, chain in zip(lines, chains, strict=True):
                u.scores.store(chain, line, 0)

        in_pieces(0, keys, u.tile_rows, tile)


def _read_mask(u: _Unit, bias: Ref, first_key: Val, keys: Val) -> None:
    """bias[key][query] of the block; queries that are missing see nothing."""
    with if_(u.count < LANES), for_(0, keys) as line:
        bias.store(const(-inf, "f32", lanes=LANES), line.index, 0)
    with for_(0, u.count) as query, for_(0, keys) as line:
        place = (u.batch, u.head, u.first + query.index)
        bias.store(u.o.bias(place, first_key + line.index), line.index, query.index)


def _mask(u: _Unit, first_key: Val, keys: Val, maximum: Val) -> Val:
    """Scale the scores, set invisible ones to -Inf; return the new maximum."""
    queries = splat(cast(u.position, "i32")) + iota()
    first, last = u.visibility.limits(queries, splat(cast(u.room, "i32")))
    with for_(0, keys, carry=maximum) as line:
        product = u.scores.load(line.index, 0, lanes=LANES)
        key = splat(cast(first_key + line.index, "i32"))
        visible = (key >= first) & (key < last)
        bias = None if u.bias is None else u.bias.load(line.index, 0, lanes=LANES)
        score = finish(u.visibility, product, u.o.scale, u.o.softcap, bias, visible)
        u.scores.store(score, line.index, 0)
        line.next(greater(score, line.carry))
    return line.results


def _weigh(u: _Unit, keys: Val, old_maximum: Val, total: Val, maximum: Val) -> Val:
    """Turn scores into weights; leave the factor of what came before in ``row``; return the new sum of weights."""
    padded = ceil_div(keys, PARTIAL_SUMS) * PARTIAL_SUMS
    with for_(keys, padded) as line:
        u.scores.store(const(-inf, "f32", lanes=LANES), line.index, 0)
    base = finite_or_zero(maximum)
    factor = exp(old_maximum - base)
    u.row.store(factor, 0)
    with for_(0, padded, carry=[const(0.0, "f32", lanes=LANES)] * PARTIAL_SUMS) as line:
        weight = exp(u.scores.load(line.index, 0, lanes=LANES) - base)
        u.scores.store(weight, line.index, 0)
        line.next([*line.carry[1:], line.carry[0] + weight])  # each sum's turn comes every fourth line
    return fma(total, factor, join(line.results))


def _accumulate(u: _Unit, first_key: Val, keys: Val) -> None:
    """y = y factor + weights v, a tile of queries at a time."""
    whole = u.count - u.count % u.tile_rows
    with for_(0, whole, u.tile_rows) as start:
        _accumulate_rows(u, first_key, keys, [start.index + row for row in range(u.tile_rows)])
    with for_(whole, u.count) as query:
        _accumulate_rows(u, first_key, keys, [query.index])


def _accumulate_rows(u: _Unit, first_key: Val, keys: Val, rows: list[Val]) -> None:
    """Keys that all rows see need no test; before (window) and after (causal) them, each row takes what it sees."""

    def within_block(key: Val) -> Val:
        return greater(lesser(key - first_key, keys), index(0))

    limits = [u.limits(row) for row in rows]
    some_from, all_from = within_block(limits[0][0]), within_block(limits[-1][0])
    all_to, some_to = within_block(limits[0][1]), within_block(limits[-1][1])

    def columns(column: Val, mask: Val | None) -> None:
        places = [(u.batch, u.head, u.first + row, column) for row in rows]
        factors = [splat(u.row.load(row)) for row in rows]
        chains = [u.o.y.load(*place, lanes=LANES, mask=mask) * f for place, f in zip(places, factors, strict=True)]

        v_row = u.values.block(first_key, column)
        scores = u.scores.at(0, rows[0], rank=2)

        def add(first: Val, last: Val, chains: list[Val], guarded: bool) -> list[Val]:
            with for_(first, last, carry=chains) as line:
                key = first_key + line.index
                value = v_row(line.index).load(0, lanes=LANES, mask=mask)
                weights = [splat(scores.load(line.index, row)) for row in range(len(rows))]
                sums = [fma(weight, value, chain) for weight, chain in zip(weights, line.carry, strict=True)]
                if guarded:
                    seen = [_sees(u, limit, key, line.index, row) for limit, row in zip(limits, rows, strict=True)]
                    sums = [select(c, new, old) for c, new, old in zip(seen, sums, line.carry, strict=True)]
                line.next(sums)
            return line.results

        if u.visibility.window is not None:
            chains = add(some_from, all_from, chains, guarded=True)
        chains = add(all_from, all_to, chains, guarded=u.bias is not None)
        if u.visibility.causal:
            chains = add(greater(all_from, all_to), some_to, chains, guarded=True)
        for place, chain in zip(places, chains, strict=True):
            u.o.y.store(chain, *place, mask=mask)

    each_vector(0, u.o.v.dim(3), columns, lanes=LANES)


def _sees(u: _Unit, limits: tuple[Val, Val], key: Val, line: Val, row: Val) -> Val:
    """Whether query ``row`` of the tile sees ``key``, the ``line``-th of the block."""
    low, high = limits
    seen = (key >= low) & (key < high)
    return seen if u.bias is None else seen & ne(u.bias.load(line, row), -inf)


def _each_row_vector(u: _Unit, body: Callable[[Val, Val, Val | None], None]) -> None:
    """Emit ``body(query of the tile, column, mask)`` over the tile's rows of y."""
    with for_(0, u.count) as query:
        each_vector(0, u.o.v.dim(3), lambda column, mask: body(query.index, column, mask), lanes=LANES)


VARIANT = AttentionVariant("flash", ("prefill",), build)
