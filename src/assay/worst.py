"""Worst inputs found by a deep run, kept as explicit cases: one line each, run first by every later check."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.case import Example
from assay.record.controller import CASE
from assay.spec import OpSpec


@dataclass(frozen=True)
class Worst:
    """The example of a spec with the largest error/bound seen, by its id and seed code."""

    name: str
    shape: str
    code: str
    headroom: float


@cache
def read(path: Path) -> tuple[Worst, ...]:
    """Stored examples; none if there is no file."""
    return tuple(Worst(**json.loads(line)) for line in path.read_text().splitlines()) if path.exists() else ()


def stored_examples(path: Path, spec: OpSpec) -> list[Example]:
    """The spec's stored examples. Those of sizes the spec no longer has are left out."""
    found = []
    for worst in read(path):
        if worst.name == spec.name:
            try:
                found.append(Example.parse(spec, worst.shape, int(worst.code, 0)))
            except ValueError:
                continue
    return found


def merge(old: Iterable[Worst], new: Iterable[Worst]) -> list[Worst]:
    """One entry per spec: the one with the largest error/bound, sorted by name."""
    best: dict[str, Worst] = {}
    for worst in (*old, *new):
        if worst.name not in best or worst.headroom > best[worst.name].headroom:
            best[worst.name] = worst
    return [best[name] for name in sorted(best)]


class Keeper:
    """Plugin of a deep run's writing process: at its end, the worst inputs it found join those stored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[Worst] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the worst example of every check that passed; one that failed is not an input to keep but a fault."""
        properties: dict[str, Any] = dict(report.user_properties)
        facts: dict[str, Any] | None = properties.get(CASE) if report.when == "call" else None
        if facts and facts["status"] == "ok" and facts["headroom"] and facts["worst"][0]:
            shape, code = facts["worst"]
            self.found.append(Worst(facts["case"]["name"], shape, code, facts["headroom"]))

    def pytest_sessionfinish(self) -> None:
        if self.found:
            write(self.path, merge(read(self.path), self.found))


def write(path: Path, found: Iterable[Worst]) -> None:
    """Replace the file's content, whole."""
    path.write_text("".join(f"{json.dumps(asdict(worst))}\n" for worst in found))
    read.cache_clear()
