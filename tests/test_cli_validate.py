"""``assay validate``: its steps in order, its progress, and an exit code that is 0 only if all is well."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from known_ceiling import known_ceiling
from sample_records import result, run_row
from typer.testing import CliRunner

from assay.backends._torch_model import TorchModel
from assay.cli import app, subtests, validation
from assay.measure import model_speed
from assay.record import Writer
from assay.record.writer import read
from assay.tokens import session

TINY = ("validate", "--model", "llama-tiny", "--backend", "torch_eager", "--profile", "demo")


class FakeSuite:
    """Stands in for the pytest process: writes one row, reports progress, ends with a code."""

    def __init__(self, code: int = 0, status: str = "ok") -> None:
        self.code, self.status, self.arguments = code, status, []

    def __call__(self, root, arguments, progress):
        self.arguments = arguments
        writer = Writer(Path(arguments[arguments.index("--record") + 1]) / "suite.jsonl")
        writer.write(run_row("suite"))
        writer.write(result("linear", "host", 0.1, self.status, "off by one" if self.status == "failed" else ""))
        writer.close()
        progress(0.5)
        progress(1.0)
        return subtests.Finished(self.code, (), "1 passed in 0.1s", "the last lines")


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> FakeSuite:
    fake = FakeSuite()
    monkeypatch.setattr(subtests, "run", lambda *arguments: fake(*arguments))
    known_ceiling(monkeypatch, read_gb_s=25.0)
    monkeypatch.setattr(validation, "GENERATIONS", 1)
    honest = model_speed.compare_prefill
    short = functools.partial(honest, tokens=16, pairs=1)
    monkeypatch.setattr(model_speed, "compare_prefill", short)
    return fake


def validate(folder: Path):
    return CliRunner().invoke(app, [*TINY, "--records", str(folder)])


def test_a_good_run_records_times_and_writes_the_page(suite: FakeSuite, tmp_path: Path) -> None:
    done = validate(tmp_path)

    assert done.exit_code == 0, done.output
    for text in ("answer", "ms/token", "1 passed", str(tmp_path / "report.html"), "linear"):
        assert text in done.stdout, text
    shares = [int(line.split()[0]) for line in done.stderr.splitlines() if " %  " in line]
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] == 100
    rows = list(read(tmp_path))
    timing = next(row for row in rows if getattr(row, "check", "") == "timing")
    assert timing.metric("tpot_ms") > 0 and timing.metric("prefill16_speedup") > 0
    assert "linear" in (tmp_path / "report.html").read_text()


def test_the_suite_is_asked_for_this_model_its_layers_and_the_ops_it_runs(
    suite: FakeSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TorchModel.facts
    monkeypatch.setattr(TorchModel, "facts", lambda self: {**plain(self), "ops": ("linear", "rope")})
    validate(tmp_path)
    options = dict(zip(suite.arguments, suite.arguments[1:], strict=False))
    assert options["-k"] == "test_layers or llama_tiny or [linear or [rope"
    assert options["--profile"] == "quick" and options["--record"] == str(tmp_path)


def test_a_failed_cell_fails_the_validation_and_is_named(suite: FakeSuite, tmp_path: Path) -> None:
    suite.code, suite.status = 1, "failed"
    done = validate(tmp_path)
    assert done.exit_code == 1
    assert "linear on host: off by one" in done.stderr
    assert (tmp_path / "report.html").exists()


def test_a_suite_that_breaks_without_a_failed_cell_fails_too(suite: FakeSuite, tmp_path: Path) -> None:
    suite.code = 3
    done = validate(tmp_path)
    assert done.exit_code == 1 and "ended with code 3" in done.stderr and "the last lines" in done.stderr


def test_a_suite_that_could_not_record_ends_with_7(suite: FakeSuite, tmp_path: Path) -> None:
    suite.code = 7
    assert validate(tmp_path).exit_code == 7


def test_a_speed_above_the_ceiling_is_a_failed_check(suite: FakeSuite, tmp_path: Path, monkeypatch) -> None:
    known_ceiling(monkeypatch, read_gb_s=1e-6)
    monkeypatch.setattr(session, "last_level_cache", lambda: 0)
    done = validate(tmp_path)
    assert done.exit_code == 1 and "above the measured ceiling" in done.stderr


def test_only_what_this_run_recorded_counts(suite: FakeSuite, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "older.jsonl")
    writer.write(run_row("older"))
    writer.write(result("rope", "host", 9.0, "failed", "yesterday's fault"))
    writer.close()
    assert validate(tmp_path).exit_code == 0


def test_following_a_real_pytest_run(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_good(): pass\n\ndef test_bad(): assert 1 == 2\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    seen: list[float] = []

    done = subtests.run(tmp_path, ["test_two.py"], seen.append)

    assert done.code == 1
    assert done.failed == ("test_two.py::test_bad",)
    assert seen == [0.5, 1.0]
    assert "1 failed, 1 passed" in done.summary


def test_json_lines_of_a_validation_parse(suite: FakeSuite, tmp_path: Path) -> None:
    validate(tmp_path)
    for file in tmp_path.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            assert json.loads(line)["type"] in ("run", "result", "note")
