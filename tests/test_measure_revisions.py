"""Two revisions against each other: what is run, what is called slower, and what a failing side says."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from known_ceiling import known_ceiling
from typer.testing import CliRunner

from assay.cli import app
from assay.cli import compare as command
from assay.errors import AssayError, UsageError
from assay.measure import revisions, versus
from assay.measure.checkout import WORKING_TREE, Checkout, checkout
from assay.measure.worker import DECODE_TOKENS, PROTOCOL, Hello
from assay.record.writer import read

SUBJECT = versus.Subject("m", "fp32", "host", 2)


class FakeWorker:
    """Takes ``seconds(call)`` for its call-th run, give or take half a percent."""

    def __init__(self, artifact: str, seconds: Callable[[int], float]) -> None:
        self.hello = Hello(PROTOCOL, artifact, 1 << 30, 1.0)
        self._calls = itertools.count()
        self._seconds, self._noise = seconds, np.random.default_rng(len(artifact))

    def seconds(self, phase: str) -> float:
        return self._seconds(next(self._calls)) * (1 + 0.005 * self._noise.standard_normal())


def outcome(monkeypatch: pytest.MonkeyPatch, base: FakeWorker, head: FakeWorker, twin: FakeWorker) -> revisions.Outcome:
    known_ceiling(monkeypatch, read_gb_s=25.0)
    monkeypatch.setattr(versus, "open_all", lambda *_: [base, head, twin])
    return revisions.compare(SUBJECT, Path("base"), Path("head"), 12, lambda *_: None)


def steady(artifact: str, seconds: float) -> FakeWorker:
    return FakeWorker(artifact, lambda _: seconds)


def changes(found: revisions.Outcome) -> list[str]:
    return [finding.change for finding in found.findings]


def test_a_head_that_is_eight_percent_slower_is_slower_in_both_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(monkeypatch, steady("a", 0.100), steady("bb", 0.108), steady("ccc", 0.108))
    assert changes(found) == ["slower", "slower"]
    prefill = found.findings[0]
    assert prefill.ms("base") == pytest.approx(100, rel=0.01) and prefill.ms("head") == pytest.approx(108, rel=0.01)
    assert "+8" in str(prefill) and "12 pairs" in str(prefill)


def test_equal_speed_is_the_same_and_a_faster_head_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes(outcome(monkeypatch, steady("a", 0.1), steady("bb", 0.1), steady("ccc", 0.1))) == ["same"] * 2
    assert changes(outcome(monkeypatch, steady("a", 0.1), steady("bb", 0.08), steady("ccc", 0.08))) == ["faster"] * 2


def test_what_the_second_batch_does_not_repeat_is_not_a_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 phases, one unmeasured round and 12 rounds a batch: the 26 first calls are the first batch."""
    head, twin = (FakeWorker(name, lambda call: 0.11 if call < 26 else 0.1) for name in ("bb", "ccc"))
    assert changes(outcome(monkeypatch, steady("a", 0.1), head, twin)) == ["slower once"] * 2


def test_drift_that_falls_on_all_alike_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def drift(call: int) -> float:
        return 0.1 * (1 + 0.02 * call)

    workers = [FakeWorker(name, drift) for name in ("a", "bb", "ccc")]
    assert changes(outcome(monkeypatch, *workers)) == ["same"] * 2


def test_a_difference_within_the_noise_of_head_against_head_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(monkeypatch, steady("a", 0.100), steady("bb", 0.106), steady("ccc", 0.118))
    assert found.floor > 0.1 and changes(found) == ["same"] * 2


def test_equal_code_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(monkeypatch, steady("a", 1.0), steady("a", 2.0), steady("a", 2.0))
    assert changes(found) == ["same code"] * 2 and found.findings[0].samples == ()


def test_decode_stands_beside_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(monkeypatch, steady("a", 0.1), steady("bb", 0.1), steady("ccc", 0.1))
    prefill, decode = found.findings
    assert found.share(prefill) is None
    assert found.share(decode) == pytest.approx((1 << 30) / 0.1 / 25e9, rel=0.01)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "t")
        monkeypatch.setenv(f"{name}_EMAIL", "t@example.org")
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    for text in ("first", "second"):
        (folder / "file").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", text)
    return folder


def test_each_revision_gets_its_files_under_a_path_of_equal_length(repository: Path) -> None:
    base, head = checkout(repository, "HEAD~1"), checkout(repository, "HEAD")
    assert (base.tree / "file").read_text() == "first" and (head.tree / "file").read_text() == "second"
    assert len(str(base.tree)) == len(str(head.tree))
    assert checkout(repository, WORKING_TREE) == head


def test_the_working_tree_is_what_lies_there_and_is_left_alone(repository: Path) -> None:
    (repository / "file").write_text("third")
    assert (checkout(repository, WORKING_TREE).tree / "file").read_text() == "third"
    assert (repository / "file").read_text() == "third" and git(repository, "stash", "list") == ""


def test_an_unknown_revision_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="revision='nowhere'"):
        checkout(repository, "nowhere")


def test_a_worker_times_both_phases_of_a_real_model() -> None:
    subject = versus.Subject("llama-tiny", "fp32", "host", 1, "torch_eager")
    root = Path(__file__).parents[1]
    with ExitStack() as stack:
        worker = stack.enter_context(versus.Worker(root, subject))
        assert worker.hello.weight_bytes > 0
        assert 0 < worker.seconds("decode") < 60 and 0 < worker.seconds("prefill") < 60
        assert DECODE_TOKENS > 1


def test_a_worker_that_cannot_start_says_why() -> None:
    subject = versus.Subject("no-such-model", "fp32", "host", 1, "torch_eager")
    with ExitStack() as stack, pytest.raises(AssayError, match="unknown model='no-such-model'"):
        _ = stack.enter_context(versus.Worker(Path(__file__).parents[1], subject)).hello


@pytest.mark.parametrize(("head_seconds", "code"), [(0.1, 0), (0.12, 1)])
def test_the_command_records_and_ends_with_1_only_for_a_slower_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head_seconds: float, code: int
) -> None:
    known_ceiling(monkeypatch, read_gb_s=25.0)
    monkeypatch.setattr(command, "checkout", lambda root, revision: Checkout(f"{revision:0<40}", root))
    workers = [steady("a", 0.1), steady("bb", head_seconds), steady("ccc", head_seconds)]
    monkeypatch.setattr(versus, "open_all", lambda *_: workers)
    arguments = ["compare", "--model", "llama-tiny", "--backend", "torch_eager", "--records", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    assert ("2 rows are slower" in done.stderr) == bool(code)
    rows = json.loads(done.stdout)["rows"]
    assert {row["change"] for row in rows} == ({"slower"} if code else {"same"})
    recorded = [row for row in read(tmp_path) if getattr(row, "check", "") == "compare"]
    assert [row.metric("ratio") for row in recorded] == [row["ratio"] for row in rows]
    assert all(len(row.metrics[0].samples) == 12 for row in recorded)
