"""Asking for the row that comes next while this one is computed, so that memory does not rest meanwhile.

A row that is folded and then walked again is in a cache after its first walk, so later walks leave memory idle. The
last fold, usually the longest walk, therefore asks for what the next row reads and writes. Only hints: no bit depends
on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from anvil.kernels.dsl import Val, index, select
from anvil.lower.generic.window import Window

_ROW = 16 << 10  # elements of a row that leaves room for the next one in the second-level cache


@dataclass(frozen=True)
class Ahead:
    """The windows that move from row to row, and the indices of the row after this one."""

    windows: Sequence[Window]
    at: Mapping[int, Val]

    def ask(self, at: Mapping[int, Val]) -> None:
        """For the line in which the next row has what this row has ``at``."""
        place = {**at, **self.at}
        for window in self.windows:
            window.prefetch([place[loop] for loop in window.operand.loops])


def moving(windows: Sequence[Window], vector: int | None) -> list[Window]:
    """Those whose lanes lie side by side and which are not the same for every row."""
    rows = [window for window in windows if window.operand.access == "unit" and len(window.operand.loops) > 1]
    return [window for window in rows if window.operand.loops[-1] == vector]


def step(sizes: Sequence[Val]) -> Val:
    """How far the row to ask for is away: 1, or 0 where two rows of these ``sizes`` are more than a cache holds."""
    return select(reduce(mul, sizes, index(1)) <= _ROW, index(1), index(0))
