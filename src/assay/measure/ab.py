"""The A/B protocol: is head slower than base on a machine that drifts?

Base and head run alternately in ABBA order, so that drift falls on both alike; only the ratio inside a pair counts. A
row is slower only if the 95 % bootstrap interval of the median ratio excludes 1, the ratio exceeds both 3 % and the
noise floor of this very session, the Benjamini-Hochberg procedure keeps it at 5 %, and a second batch repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.stats

PAIRS = 12  # least pairs per row
LEAST_EFFECT = 0.03
FALSE_DISCOVERY_RATE = 0.05
SUSPECT_SHARE = 0.8  # of the rows moving one way: the machine moved, not the code
RESAMPLES = 2000


@dataclass(frozen=True)
class Comparison:
    """head/base of one row: median ratio, its 95 % interval, and the Wilcoxon signed-rank p-value."""

    ratio: float
    low: float
    high: float
    p_value: float
    pairs: int


@dataclass(frozen=True)
class Verdict:
    """What a comparison means among all rows of its session."""

    comparison: Comparison
    change: Literal["slower", "faster", "same"]


@dataclass(frozen=True)
class Session:
    """All rows of one batch. ``floor`` is the largest deviation of a row that ran head against head."""

    verdicts: dict[str, Verdict]
    floor: float
    suspect: bool

    def slower(self) -> set[str]:
        return {name for name, verdict in self.verdicts.items() if verdict.change == "slower"}


def abba(pairs: int) -> Iterator[tuple[str, str]]:
    """The order to run in: (base, head), (head, base), and so on."""
    for index in range(pairs):
        yield ("base", "head") if index % 2 == 0 else ("head", "base")


def interleave(base: Callable[[], float], head: Callable[[], float], pairs: int = PAIRS) -> list[tuple[float, float]]:
    """Run both in ABBA order after one unmeasured run each; (base, head) of every pair, in what they return."""
    run = {"base": base, "head": head}
    for warm in run.values():
        warm()
    samples = []
    for order in abba(pairs):
        times = {name: run[name]() for name in order}
        samples.append((times["base"], times["head"]))
    return samples


def compare(samples: Sequence[tuple[float, float]], seed: int = 0) -> Comparison:
    """Compare paired times (base, head). Raises ``ValueError`` for under twelve pairs, or a time not above zero."""
    times = np.asarray(samples, np.float64)
    if len(times) < PAIRS:
        raise ValueError(f"comparing times: pairs={len(times)}, expected at least {PAIRS}")
    if not (times > 0).all():
        raise ValueError(f"comparing times: smallest={times.min()}, expected times above zero")
    logs = np.log(times[:, 1] / times[:, 0])
    draws = np.random.default_rng(seed).integers(0, len(logs), (RESAMPLES, len(logs)))
    low, high = np.quantile(np.median(logs[draws], axis=1), (0.025, 0.975))
    p_value = np.asarray(scipy.stats.wilcoxon(logs))[1] if logs.any() else 1.0
    return Comparison(
        float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)), float(p_value), len(logs)
    )


def judge(rows: Mapping[str, Comparison], head_against_head: Sequence[Comparison]) -> Session:
    """Verdicts for all rows of one batch, given the rows that compared head with itself in the same session."""
    floor = max((abs(np.log(c.ratio)) for c in head_against_head), default=0.0)
    least = max(np.log1p(LEAST_EFFECT), floor)
    names = list(rows)
    kept = benjamini_hochberg([rows[name].p_value for name in names])

    def change(comparison: Comparison, significant: bool) -> Literal["slower", "faster", "same"]:
        if not significant or abs(np.log(comparison.ratio)) <= least or comparison.low <= 1 <= comparison.high:
            return "same"
        return "slower" if comparison.ratio > 1 else "faster"

    up = sum(c.ratio > 1 for c in rows.values())
    down = sum(c.ratio < 1 for c in rows.values())
    return Session(
        {name: Verdict(rows[name], change(rows[name], keep)) for name, keep in zip(names, kept, strict=True)},
        floor=float(floor),
        suspect=len(rows) >= 5 and max(up, down) > SUSPECT_SHARE * len(rows),
    )


def confirmed_slower(first: Session, second: Session) -> set[str]:
    """The rows that both batches call slower: the only ones that fail a change."""
    return first.slower() & second.slower()


def benjamini_hochberg(p_values: Sequence[float], rate: float = FALSE_DISCOVERY_RATE) -> list[bool]:
    """Which hypotheses to reject so that at most ``rate`` of the rejections are expected to be false."""
    count = len(p_values)
    order = np.argsort(p_values)
    passed = [rank for rank, index in enumerate(order, 1) if p_values[index] <= rate * rank / count]
    rejected = set(order[: max(passed, default=0)].tolist())
    return [index in rejected for index in range(count)]
