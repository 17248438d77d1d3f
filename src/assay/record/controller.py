"""The one process that writes: turns test reports into rows as they arrive, and says at the end what was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from assay.record.rows import CaseKey, Metric, Note, Result, Row, Run
from assay.record.writer import RecordError, Writer

#: Name of the user property a checked test carries: the facts of its row.
CASE = "assay"
SHARED = ("status", "reason", "executor", "artifact", "examples")


class Controller:
    """Registered on the controller of a parallel run and on the only process of a sequential one."""

    def __init__(self, writer: Writer | None, keys: Callable[[], Mapping[str, CaseKey]], run: Run) -> None:
        self.writer, self.keys, self.run = writer, keys, run
        self.results: list[Result] = []

    def pytest_sessionstart(self) -> None:
        self._write(self.run)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The rows of a finished test, and one for a test whose worker died in it."""
        results = results_of(report, self.keys, self.run.run)
        self.results += results
        for result in results:
            self._write(result)
        for name, data in notes_of(report).items():
            self._write(Note(results[0].case, name, data, self.run.run))

    def pytest_sessionfinish(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.results:
            terminalreporter.section("assay")
            for line in summary(self.results):
                terminalreporter.write_line(line)
            if self.writer is not None:
                terminalreporter.write_line(f"record   {self.writer.path}")

    def _write(self, row: Row) -> None:
        if self.writer is None:
            return
        try:
            self.writer.write(row)
        except RecordError as error:
            self.writer = None
            pytest.exit(str(error), returncode=error.exit_code)


def results_of(report: pytest.TestReport, keys: Callable[[], Mapping[str, CaseKey]], run: str) -> list[Result]:
    """The rows of a report: none for tests without a case and for phases that decide nothing."""
    check = report.nodeid.split("[")[0].split("::")[-1]
    if report.when == "call" and (found := facts_of(report)):
        return [_result(facts, check, report.duration / len(found), run) for facts in found]
    if report.failed and report.when not in ("call", "teardown"):
        key = key_of(report.nodeid, keys()) if "[" in report.nodeid else None
        return [Result(key, check, "failed", reason=last_line(report), seconds=report.duration, run=run)] if key else []
    return []


def _result(facts: Mapping[str, Any], check: str, seconds: float, run: str) -> Result:
    shared: dict[str, Any] = {name: facts[name] for name in SHARED}
    metrics = tuple(metrics_of(facts)) + tuple(Metric(**metric) for metric in facts.get("metrics", ()))
    return Result(CaseKey(**facts["case"]), check, **shared, seconds=seconds, metrics=metrics, run=run)


def facts_of(report: pytest.TestReport) -> list[Mapping[str, Any]]:
    """What a checked test says of its cases: most tests have one, a test of an overload one per element type."""
    found: Any = dict(report.user_properties).get(CASE, [])
    return cast("list[Mapping[str, Any]]", found if isinstance(found, list) else [found])


def notes_of(report: pytest.TestReport) -> Mapping[str, Any]:
    """Notes of a check by name; most have none."""
    found = facts_of(report) if report.when == "call" else []
    return found[0].get("notes", {}) if found else {}


def metrics_of(facts: Mapping[str, Any]) -> list[Metric]:
    """The two numbers every numerical check has."""
    units = (("headroom", "error/bound"), ("ulps", "ulp"))
    return [Metric(name, facts[name], unit) for name, unit in units if facts.get(name) is not None]


def key_of(nodeid: str, keys: Mapping[str, CaseKey]) -> CaseKey | None:
    """The case of a node id, also with a shape behind it; None if it has none."""
    inside = nodeid.partition("[")[2].removesuffix("]")
    return keys.get(inside) or keys.get(inside.rpartition("-")[0])


def last_line(report: pytest.TestReport) -> str:
    lines = str(report.longrepr).strip().splitlines()
    return lines[-1] if lines else "failed without a message"


def summary(results: list[Result]) -> list[str]:
    """Cases, examples, worst headroom with its case, and every reason something did not run."""
    status = Counter(result.status for result in results)
    ran = [r for r in results if r.status in ("ok", "failed")]
    counts = ", ".join(f"{status[name]} {name}" for name in ("ok", "failed", "not_run", "unsupported") if status[name])
    lines = [
        f"cases    {len({r.case.id for r in ran})} on {len({r.case.target for r in ran})} targets, checks: {counts}",
        f"examples {sum(r.examples for r in results)}",
    ]
    measured = [(r.metric("headroom"), r) for r in ran if r.status == "ok" and r.metric("headroom") is not None]
    if measured:
        headroom, worst = max(measured, key=lambda pair: pair[0] or 0.0)
        lines.append(f"headroom worst error/bound {headroom:.3f} in {worst.check}[{worst.case.id}]")
    missing = Counter((r.status, r.case.target, r.reason) for r in results if r.status in ("not_run", "unsupported"))
    lines += [f"{status}: {count} checks on {target}: {reason}" for (status, target, reason), count in missing.items()]
    return lines
