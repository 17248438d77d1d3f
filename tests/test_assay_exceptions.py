"""Exceptions to a rule: data with a reason and a last day, that may neither expire nor be superfluous in silence."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from test_assay_plugin import output, pytest_plugins, results, run  # noqa: F401
from test_assay_plugin import project as project

from assay import exceptions, ledger
from assay.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
ENTRY = """
[[exception]]
case = "add-*-one"
test = "test_layouts"
values = "normal"
reason = "the last two features are off by one"
expires = {expires}
"""
LATER = datetime.date.today() + datetime.timedelta(days=30)


def excepted(project: pytest.Pytester, expires: datetime.date = LATER) -> None:
    (project.path / "ops" / "exceptions.toml").write_text(ENTRY.format(expires=expires))


def test_an_excused_example_passes_and_is_told(project: pytest.Pytester) -> None:
    excepted(project)
    run(project, "-k", "test_layouts", fault="tail").assert_outcomes(passed=2, skipped=1)
    (row,) = [row for row in results(project) if row.case.target == "one"]
    assert row.status == "ok" and row.metric("headroom") == 0, "what is excused is not measured"
    assert "examples excused: exception for add-*-one" in row.reason and f"until {LATER}" in row.reason
    (line,) = [line for line in ledger.rows(results(project)) if line.target == "one"]
    assert "the last two features are off by one" in line.reason


def test_an_exception_covers_no_other_check_and_no_other_case(project: pytest.Pytester) -> None:
    excepted(project)
    done = run(project, "-k", "test_within_bound", fault="tail")
    done.assert_outcomes(passed=1, failed=1, skipped=1)


def test_an_exception_that_is_not_needed_fails(project: pytest.Pytester) -> None:
    excepted(project)
    done = run(project, "-k", "test_layouts")
    done.assert_outcomes(passed=1, failed=1, skipped=1)
    assert "needs it; take it out" in output(done)


def test_an_expired_exception_fails(project: pytest.Pytester) -> None:
    excepted(project, datetime.date.today())
    done = run(project, "-k", "test_layouts", fault="tail")
    done.assert_outcomes(passed=1, errors=1, skipped=1)
    assert "it has expired; mend the case, or renew it" in output(done)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("reason", "why"), r"has \['case', 'expires', 'test', 'values', 'why'\], expected exactly"),
        (('"the last two features are off by one"', '"flaky"'), "reason='flaky', expected why"),
        (("2099-01-01", '"2099-01-01"'), "expected a date such as"),
        (('"normal"', '"odd"'), "values='odd', expected one of"),
        (("[[", "["), "reading exceptions"),
    ],
)
def test_what_is_not_an_exception_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = tmp_path / "exceptions.toml"
    file.write_text(ENTRY.format(expires="2099-01-01").replace(*change))
    with pytest.raises(UsageError, match=message):
        exceptions.read(file)


def test_every_exception_of_this_repository_is_in_force() -> None:
    for allowance in exceptions.read(ROOT / "ops" / exceptions.FILE):
        assert datetime.date.today() < allowance.expires, allowance


def test_no_file_is_no_exception(tmp_path: Path) -> None:
    assert exceptions.read(tmp_path / exceptions.FILE) == ()
