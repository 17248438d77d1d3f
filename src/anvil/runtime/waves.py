"""Where the threads of a team must wait for each other: not between all rows, only where one needs another.

Rows that touch no memory that the others write, such as the projections of queries, keys and values, follow each other
without a barrier. Of rows so small that a barrier takes longer, one thread does all, and waits for nobody in between.
Neither changes a bit: the result of a row depends on what it reads, and not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from anvil.dtypes import itemsize
from anvil.runtime.binding import Binding
from anvil.runtime.plan import Plan, View

WAIT = 1  # all threads wait for each other before the row
ALONE = 2  # thread 0 does the whole row
_SMALL = 12 << 10  # bytes a row reads and writes in less time than a barrier takes


@dataclass
class _Touched:
    """Buffers that overlap what rows since the last barrier have touched: not to be read, not to be written."""

    unreadable: set[str] = field(default_factory=set)
    unwritable: set[str] = field(default_factory=set)

    def allow(self, reads: set[str], writes: set[str]) -> bool:
        return reads.isdisjoint(self.unreadable) and writes.isdisjoint(self.unwritable)

    def add(self, reads: set[str], writes: set[str], near: Mapping[str, set[str]]) -> None:
        for name in writes:
            self.unreadable |= near[name]
            self.unwritable |= near[name]
        for name in reads:
            self.unwritable |= near[name]


def marks(binding: Binding) -> np.ndarray:
    """uint8 [rows]: the sum of ``WAIT`` and ``ALONE`` for each row, for the sizes and addresses that are bound."""
    plan = binding.plan
    near = _overlapping(binding.addresses, binding.nbytes(binding.values))
    together, alone = _Touched(), _Touched()
    found = np.zeros(len(plan.rows), np.uint8)
    for index, (small, (reads, writes)) in enumerate(zip(_small(binding), _uses(plan), strict=True)):
        free = together.allow(reads, writes) and (small or alone.allow(reads, writes))
        if not free:
            together, alone = _Touched(), _Touched()
        (alone if small else together).add(reads, writes, near)
        found[index] = WAIT * (not free) + ALONE * small
    return found


def _uses(plan: Plan) -> list[tuple[set[str], set[str]]]:
    """The buffers each row reads and those it writes."""
    found = []
    for row in plan.rows:
        views = [
            (param.kind, arg.buffer)
            for param, arg in zip(plan.kernels[row.kernel].params, row.args, strict=True)
            if isinstance(arg, View)
        ]
        found.append(({name for kind, name in views if kind != "out"}, {name for kind, name in views if kind != "in"}))
    return found


def _small(binding: Binding) -> list[bool]:
    """Whether each row touches less than ``_SMALL`` bytes. Of a cache that it writes a row touches only a part."""
    plan, words = binding.plan, binding.words.tolist()
    found = []
    for row, first in zip(plan.rows, binding.first_word.tolist(), strict=True):
        nbytes, at = 0, first
        for param, arg in zip(plan.kernels[row.kernel].params, row.args, strict=True):
            if isinstance(arg, View) and (param.kind == "in" or plan.buffers[arg.buffer].role != "cache"):
                nbytes += prod(words[at + 3 : at + 3 + param.rank]) * itemsize(param.dtype)
            at += param.words
        found.append(nbytes < _SMALL)
    return found


def _overlapping(addresses: Mapping[str, int], nbytes: Mapping[str, int]) -> dict[str, set[str]]:
    """For each buffer the buffers that share memory with it, itself among them."""
    names: Sequence[str] = sorted(nbytes, key=lambda name: addresses.get(name, 0))
    found = {name: {name} for name in names}
    open_: list[str] = []
    for name in names:
        start = addresses.get(name, 0)
        open_ = [other for other in open_ if addresses.get(other, 0) + nbytes[other] > start]
        for other in open_ if nbytes[name] else ():
            found[name].add(other)
            found[other].add(name)
        open_.append(name)
    return found
