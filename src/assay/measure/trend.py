"""The speed of a model over many runs, and where it changed for good.

One wall time says little on a machine that drifts, so a series holds ratios to a control of the same session: ms/token
over the least that the bandwidth measured beside it allows, and the time of a prefill over that of PyTorch eager. Runs
on another testbed are another series. Smaller is better, 1 is the control.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.stats

from assay.record.rows import Result, Row, Run

LEAST_SEGMENT = 5  # points on either side of a change; a spike is shorter
LEAST_EFFECT = 0.02
ERROR_RATE = 0.01  # of calling a series changed that did not, over all places where it could have


@dataclass(frozen=True)
class Point:
    """One run. ``value`` is None where it was not measured: missing stays missing."""

    run: str
    started: str
    commit: str
    value: float | None


@dataclass(frozen=True)
class Change:
    """From ``point`` on the median is ``ratio`` times what it was since the change before."""

    point: Point
    ratio: float


@dataclass(frozen=True)
class Series:
    """One phase (prefill or decode) of one model in one mode on one target and testbed, oldest run first."""

    model: str
    quant: str
    target: str
    testbed: str
    phase: str
    points: tuple[Point, ...]

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points if point.value is not None]

    def change_places(self) -> list[int]:
        """Indices into ``values`` of the first value after each lasting change."""
        return [place for place, _ in change_points(np.array(self.values, np.float64))]

    def changes(self) -> list[Change]:
        """Every lasting change, oldest first."""
        measured = [point for point in self.points if point.value is not None]
        values = self.values
        edges = [0, *self.change_places(), len(values)]
        medians = [float(np.median(values[a:b])) for a, b in pairwise(edges) if b > a]
        pairs = zip(edges[1:], pairwise(medians), strict=False)
        return [Change(measured[place], after / before) for place, (before, after) in pairs]


def series(rows: Iterable[Row]) -> list[Series]:
    """All series of the recorded timings."""
    runs: dict[str, Run] = {}
    points: dict[tuple[str, str, str, str, str], list[Point]] = {}
    for row in rows:
        if isinstance(row, Run):
            runs[row.run] = row
        elif isinstance(row, Result) and row.check == "timing" and row.run in runs:
            run = runs[row.run]
            for phase, value in _phases(row).items():
                key = (row.case.name, row.case.quant, row.case.target, run.testbed, phase)
                points.setdefault(key, []).append(Point(run.run, run.started, run.commit, value))
    return [Series(*key, tuple(sorted(found, key=lambda p: p.run))) for key, found in sorted(points.items())]


def change_points(values: np.ndarray) -> list[tuple[int, float]]:
    """Places where the mean changes, with their p-values: f64 [N] -> indices of the first value after each.

    Splits at the place where Welch's t-test (sample variances) is surest, then looks into both halves. A split counts
    if both sides hold at least five values, their medians differ by 2 % or more, and its p-value, multiplied by the
    number of places tried, is below 1 %.
    """
    places = range(LEAST_SEGMENT, len(values) - LEAST_SEGMENT + 1)
    tried = [(float(_welch(values[:place], values[place:])), place) for place in places]
    if not tried:
        return []
    p_value, place = min(tried)
    p_value = min(1.0, p_value * len(tried))
    ratio = np.median(values[place:]) / np.median(values[:place])
    if p_value >= ERROR_RATE or abs(np.log(ratio)) < np.log1p(LEAST_EFFECT):
        return []
    after = [(place + index, p) for index, p in change_points(values[place:])]
    return [*change_points(values[:place]), (place, p_value), *after]


def _welch(left: np.ndarray, right: np.ndarray) -> float:
    """Two-sided p-value of equal means, with sample variances."""
    spread = [float(side.std(ddof=1)) for side in (left, right)]
    if not any(spread):
        return float(left[0] == right[0])
    statistics = (left.mean(), spread[0], len(left), right.mean(), spread[1], len(right))
    return np.asarray(scipy.stats.ttest_ind_from_stats(*statistics, equal_var=False))[1]


def _phases(row: Result) -> dict[str, float | None]:
    """The ratios of one timing: its own metrics say which it has."""
    share = row.metric("ceiling_share")
    speedups = [m.value for m in row.metrics if m.name.startswith("prefill") and m.name.endswith("_speedup")]
    found: dict[str, float | None] = {"decode": 1 / share if share else None}
    if speedups:
        found["prefill"] = 1 / speedups[0] if speedups[0] else None
    return found


def summary(changes: Sequence[Change]) -> str:
    """``+8.1 % since 0123abc4 (2026-01-09)`` for each change."""
    return "; ".join(f"{c.ratio - 1:+.1%} since {c.point.commit[:8]} ({c.point.started[:10]})" for c in changes)
