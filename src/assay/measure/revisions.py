"""Is head slower than base? One session of the A/B protocol for one model in one mode, with its verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from assay.measure import ab, ceiling, versus

#: ``slower`` held in two batches; ``slower once`` in one only, which happens by chance; ``same code`` was not timed.
Change = Literal["same code", "same", "faster", "slower", "slower once"]
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Finding:
    """The outcome of one phase. ``samples`` are the rounds of the batch that decided, seconds per token."""

    subject: versus.Subject
    phase: str
    change: Change
    comparison: ab.Comparison | None = None
    samples: tuple[tuple[float, float], ...] = ()

    @property
    def name(self) -> str:
        return self.subject.row(self.phase)

    def ms(self, side: Literal["base", "head"]) -> float:
        """Median ms/token of one side, NaN where nothing was timed."""
        place = ("base", "head").index(side)
        return 1e3 * float(np.median([pair[place] for pair in self.samples])) if self.samples else math.nan

    def __str__(self) -> str:
        if self.comparison is None:
            return "the same code, not timed"
        ratio, low, high = (
            100 * (value - 1) for value in (self.comparison.ratio, self.comparison.low, self.comparison.high)
        )
        times = f"{self.ms('base'):.3f} → {self.ms('head'):.3f} ms/token"
        return (
            f"{self.change}: {times}, {ratio:+.1f} % (95 %: {low:+.1f} to {high:+.1f} %), {self.comparison.pairs} pairs"
        )


@dataclass(frozen=True)
class Outcome:
    """All phases of one model in one mode. ``floor`` is what head differed from head by, as a ratio minus 1."""

    findings: tuple[Finding, ...]
    weight_bytes: int
    floor: float = 0.0
    suspect: bool = False
    ceiling: ceiling.Ceiling | None = None

    def share(self, finding: Finding) -> float | None:
        """Bytes of weights that head reads per second while decoding, over the ceiling of the same session."""
        if self.ceiling is None or finding.phase != "decode":
            return None
        return self.weight_bytes / finding.ms("head") * 1e-6 / self.ceiling.read_gb_s


def compare(subject: versus.Subject, base: Path, head: Path, pairs: int, progress: Progress) -> Outcome:
    """Time ``subject`` in both checkouts. A second batch runs only when the first calls a phase slower."""
    progress(0.0, f"loading {subject.model} {subject.quant} from base, head, and head again")
    with ExitStack() as stack:
        workers = versus.open_all(stack, base, head, subject)
        here, there = workers[0].hello, workers[1].hello
        if here.artifact == there.artifact:
            return Outcome(tuple(Finding(subject, phase, "same code") for phase in versus.PHASES), there.weight_bytes)
        probes = stack.enter_context(ceiling.Probes(subject.threads, there.weight_bytes))
        probes.measure()
        batch = versus.run(workers, pairs, lambda share: progress(0.1 + 0.45 * share, "timing base and head in turn"))
        session, confirmed = versus.judge(batch, subject), set[str]()
        probes.measure()
        if session.slower():
            batch = versus.run(workers, pairs, lambda share: progress(0.55 + 0.45 * share, "timing both once more"))
            again = versus.judge(batch, subject)
            confirmed = ab.confirmed_slower(session, again)
            probes.measure()
        found = [_finding(subject, phase, session, batch, confirmed) for phase in versus.PHASES]
        return Outcome(tuple(found), there.weight_bytes, math.expm1(session.floor), session.suspect, probes.ceiling())


def _finding(
    subject: versus.Subject, phase: str, session: ab.Session, batch: versus.Batch, confirmed: set[str]
) -> Finding:
    name = subject.row(phase)
    change: Change = session.verdicts[name].change
    if change == "slower" and name not in confirmed:
        change = "slower once"
    samples = tuple(batch.against[phase])
    return Finding(subject, phase, change, ab.compare(samples), samples)
