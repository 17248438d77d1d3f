"""Where temporary buffers lie: offsets in one block of memory, shared by buffers that are never alive together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anvil.runtime.plan import Plan, View

ALIGN = 64  # bytes: one cache line, and the widest vector register


@dataclass(frozen=True)
class Lifetime:
    """A temporary buffer is alive from row ``first`` to row ``last``, both inclusive."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Byte offsets of the buffers, the bytes the arena takes, and the least any placement could take."""

    offsets: dict[str, int]
    nbytes: int
    lower_bound: int


def lifetimes(plan: Plan) -> list[Lifetime]:
    """When each temporary buffer of ``plan`` is alive. One that an output looks into stays alive to the end."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, row in enumerate(plan.rows):
        for arg in row.args:
            if isinstance(arg, View) and plan.buffers[arg.buffer].role == "temp":
                first.setdefault(arg.buffer, index)
                last[arg.buffer] = index
    for view in plan.outputs:
        if view.buffer in first:
            last[view.buffer] = len(plan.rows)
    return [Lifetime(name, first[name], last[name]) for name in first]


def place(alive: Sequence[Lifetime], nbytes: Sequence[int]) -> Arena:
    """Offsets for buffers of ``nbytes`` bytes, the largest first, each into the tightest gap that is free for it.

    Offsets are multiples of 64 bytes. Buffers whose lifetimes share a row never share a byte. Runs in
    O(n · simultaneously alive); within a few percent of the lower bound for the chains that language models are.
    """
    count = len(alive)
    first = np.array([life.first for life in alive], dtype=np.int64)
    last = np.array([life.last for life in alive], dtype=np.int64)
    size = (np.array(nbytes, dtype=np.int64).reshape(count) + ALIGN - 1) // ALIGN * ALIGN
    offset = np.zeros(count, dtype=np.int64)
    placed = np.zeros(count, dtype=bool)
    for i in np.argsort(-size, kind="stable"):
        near = np.flatnonzero(placed & (first <= last[i]) & (last >= first[i]) & (size > 0))
        offset[i] = _best_gap(int(size[i]), offset[near], size[near])
        placed[i] = True
    return Arena(
        offsets={life.name: int(o) for life, o in zip(alive, offset, strict=True)},
        nbytes=int((offset + size).max(initial=0)),
        lower_bound=_most_alive(first, last, size),
    )


def _best_gap(want: int, offset: np.ndarray, size: np.ndarray) -> int:
    """Start of the smallest gap of at least ``want`` bytes between the given blocks, else the end of them all."""
    best, best_gap, end = -1, 0, 0
    for i in np.argsort(offset, kind="stable"):
        gap = int(offset[i]) - end
        if gap >= want and (best < 0 or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, int(offset[i] + size[i]))
    return best if best >= 0 else end


def _most_alive(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> int:
    """Most bytes alive at one row: no placement can do with less."""
    if not len(first):
        return 0
    change = np.zeros(int(last.max()) + 2, dtype=np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return int(np.cumsum(change).max())
