"""Drawing examples: hypothesis chooses small integers, everything large is made from a seed by numpy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, strategies
from hypothesis.errors import Flaky

from assay.case import Example
from assay.compare import Mismatch
from assay.spec import OpSpec


@dataclass(frozen=True)
class Profile:
    """How hard to look.

    ``scale`` multiplies the examples a check asks for; ``random`` draws others in every run, unless a seed is given;
    ``guided`` climbs towards a larger error/bound.
    """

    name: str
    scale: float
    random: bool = False
    guided: bool = False

    def count(self, examples: int) -> int:
        """Examples to draw for a check that asks for ``examples``; at least one."""
        return max(1, round(examples * self.scale))


PROFILES = {
    p.name: p for p in (Profile("quick", 0.12), Profile("ci", 1.0), Profile("deep", 40.0, random=True, guided=True))
}


#: Slow kernels under an emulator and large arrays are what this search is for.
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


class Stop(BaseException):
    """Carries an exception straight through hypothesis, which would otherwise run a crashing kernel again to shrink."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def examples(
    spec: OpSpec,
    edges: Mapping[str, int],
    limit: int,
    *,
    values: Sequence[str],
    layouts: Sequence[str] = ("contiguous",),
) -> strategies.SearchStrategy[Example]:
    """Examples of a spec: sizes around ``edges``, one of the kinds of values, one of the layouts, a seed."""
    parts = (
        spec.shapes.strategy(edges, limit),
        strategies.integers(0, len(values) - 1),
        strategies.integers(0, len(layouts) - 1),
        strategies.integers(0, 0xFFFF),
    )
    return strategies.tuples(*parts).map(lambda drawn: Example(drawn[0], values[drawn[1]], layouts[drawn[2]], drawn[3]))


def explore(
    body: Callable[[Example], None],
    strategy: strategies.SearchStrategy[Example],
    *,
    count: int,
    seed: int,
    score: Callable[[], float] | None = None,
) -> None:
    """Run ``body`` on ``count`` drawn examples. Raises what it raised on the smallest failing one.

    The same seed draws the same examples. ``Stop`` ends the search at once. With ``score``, asked after each example,
    the search climbs towards larger scores.
    """
    phases = (Phase.generate, Phase.target, Phase.shrink) if score else (Phase.generate, Phase.shrink)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        phases=phases,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=QUIET,
    )
    @hypothesis.given(strategy)
    def search(example: Example) -> None:
        body(example)
        if score is not None:
            hypothesis.target(score())

    try:
        search()
    except Flaky as error:
        cause = next((e for e in getattr(error, "exceptions", ()) if isinstance(e, Mismatch)), error)
        raise Mismatch(f"{cause}\n  repeat   not repeatable: the same input passed when it was run again") from error


def seed_of(text: str, base: int) -> int:
    """A seed for one test: stable across processes, different for every test, shifted by the run's ``base``."""
    return zlib.crc32(text.encode()) ^ base
