"""The pytest plugin as a user meets it: whole runs of pytest in a folder with one op, sequential and parallel."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import pytest
from faulty_compilers import ROOT

from assay.record import Result, Row, Run
from assay.record.writer import read
from assay.sharding import share
from assay.spec import registry

BACKEND = '''"""A compiler for these tests: what it does wrong is in the environment."""
import os, signal
from dataclasses import replace
import torch
from assay.backends.protocol import Finding, TargetStatus, Unsupported
from assay.backends.torch_eager import EagerBackend

class Compiled:
    artifact, edges = "cafe", {"N": 6}
    def __init__(self, target): self.target = target
    def stages(self): return ()
    def run(self, x, y, threads=1):
        fault = os.environ.get("FAULT", "")
        if self.target == "one" and x.numel() > 6:
            if fault == "kill" and not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "crash": raise Finding("illegal instruction in kernel add")
            if fault == "late": raise Unsupported("no kernel for these sizes")
            if fault == "bug": raise RuntimeError("adapter broke")
            if fault == "limit": import pytest; pytest.fail("Timeout (>600.0s) from pytest-timeout.")
            if fault == "skip": import pytest; pytest.skip("not today")
        result = x + y
        if fault == "tail" and self.target == "one": result[..., 6:] += 1
        return [result]

class Backend(EagerBackend):
    def targets(self):
        return [TargetStatus("one", "isa", True, "in-process"), TargetStatus("two", "isa", True, "emulated"),
                TargetStatus("away", "far", False, "", "needs qemu-user")]
    def compile(self, program, target, *, quant="fp32", variant=""):
        if os.environ.get("FAULT") == "unsupported": raise Unsupported("no lowering for aten.add")
        return Compiled(target)

BACKEND = Backend()
'''
#: within_bound, special_values, layouts and properties on three targets, same_bits on two.
EVERY_CHECK = 14
OP = '''"""add alone."""
from dataclasses import replace
from assay.formats import F32
from assay.spec import load
from pathlib import Path
SPECS = (replace(load(Path(%r)).ADD, dtypes=(F32,)),)
'''
pytest_plugins = ["pytester"]
CONFIG = "[pytest]\naddopts = --strict-markers -p no:cacheprovider\nxfail_strict = true\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with one op, the generic test file, and the little compiler."""
    path = pytester.path
    (path / "ops").mkdir()
    (path / "ops" / "add.py").write_text(OP % str(ROOT / "ops" / "pointwise.py"))
    shutil.copy(ROOT / "ops" / "test_ops.py", path / "ops")
    shutil.copy(ROOT / "conftest.py", path)
    (path / "pytest.ini").write_text(CONFIG)
    (path / "little").mkdir()
    (path / "little" / "__init__.py").write_text("")
    (path / "little" / "compiler.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(path), *sys.path]))
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("little", "little.compiler", "test_ops", "conftest"):  # this folder's own, whatever ran before
        monkeypatch.delitem(sys.modules, name, raising=False)
    return pytester


def run(project: pytest.Pytester, *arguments: str, fault: str = "", process: bool = False) -> pytest.RunResult:
    """Run pytest on the folder, in this process unless its end is what is tested."""
    os.environ["FAULT"] = fault
    registry.cache_clear()  # a run in this process takes its imports back with it
    start = project.runpytest_subprocess if process else project.runpytest_inprocess
    return start("ops", "--backend", "little.compiler", "--record", "runs", *arguments)


def output(done: pytest.RunResult) -> str:
    return "\n".join([*done.outlines, *done.errlines])


def rows(project: pytest.Pytester) -> list[Row]:
    return list(read(project.path / "runs"))


def results(project: pytest.Pytester) -> list[Result]:
    return [row for row in rows(project) if isinstance(row, Result)]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_is_recorded_and_summed_up_the_same_way(project: pytest.Pytester, workers: str) -> None:
    done = run(project, "-n", workers)
    assert done.ret == 0, output(done)
    first, rest = rows(project)[0], results(project)
    assert isinstance(first, Run) and first.backend == "little.compiler"
    assert {(r.case.target, r.status) for r in rest} == {("one", "ok"), ("two", "ok"), ("away", "not_run")}
    assert len({(r.case.id, r.check) for r in rest}) == len(rest)
    examples = sum(r.examples for r in rest)
    assert f"examples {examples}" in output(done)
    checks = {status: sum(r.status == status for r in rest) for status in ("ok", "not_run")}
    assert f"cases    2 on 2 targets, checks: {checks['ok']} ok, {checks['not_run']} not_run" in output(done)
    assert f"not_run: {checks['not_run']} checks on away: needs qemu-user" in output(done)
    assert "headroom worst error/bound 0.000 in test_" in output(done)


def test_a_failure_reads_well_and_its_replay_fails_the_same_way(project: pytest.Pytester) -> None:
    done = run(project, "-k", "within_bound", fault="tail")
    assert done.ret == 1
    assert re.search(r"^add-f32-one-M1N7: outside its bound\n  worst .* at \[0, 6\]: got .* want ", output(done), re.M)
    assert re.search(r"^  wide     M\d+N100: .* all in N=6..99 \(the tail\)$", output(done), re.M)
    assert "Traceback" not in output(done) and "compiler.py" not in output(done)
    (command,) = set(re.findall(r"^  replay   pytest (.*)$", output(done), re.M))
    test, seed = re.fullmatch(r"'(.*)' --seed (\S+) --backend little.compiler", command).groups()
    again = run(project, test, "--seed", seed, fault="tail")
    assert again.ret == 1 and "add-f32-one-M1N7: outside its bound" in output(again)
    assert run(project, test, "--seed", seed).ret == 0


def test_a_crash_is_a_finding_with_the_cases_name(project: pytest.Pytester) -> None:
    done = run(project, "-k", "within_bound", fault="crash")
    assert done.ret == 1 and "illegal instruction in kernel add" in output(done)
    (failed,) = [r for r in results(project) if r.status == "failed"]
    assert failed.case.id == "add-f32-one" and failed.reason.startswith("add-f32-one-M")
    assert any(r.case.target == "two" and r.status == "ok" for r in results(project))


def test_a_killed_worker_loses_no_recorded_line(project: pytest.Pytester) -> None:
    done = run(project, "-n", "2", fault="kill", process=True)
    assert done.ret == 1
    found = results(project)
    (lost,) = [r for r in found if r.status == "failed"]
    assert lost.case.id in ("add-f32-one", "add-f32-two") and "crashed" in lost.reason
    assert {r.case.id for r in found} == {"add-f32-one", "add-f32-two", "add-f32-away"}
    assert len(found) == len({(r.case.id, r.check) for r in found}) == EVERY_CHECK


@pytest.mark.parametrize("fault", ["unsupported", "late"])
def test_what_the_compiler_cannot_is_a_row_with_its_reason(project: pytest.Pytester, fault: str) -> None:
    done = run(project, "-k", "within_bound and one", fault=fault)
    assert done.ret == 0
    (row,) = results(project)
    assert row.status == "unsupported" and row.reason.startswith("no ")
    assert f"unsupported: 1 checks on one: {row.reason}" in output(done)


def test_an_error_of_the_adapter_is_a_failed_row_with_its_traceback(project: pytest.Pytester) -> None:
    done = run(project, "-k", "within_bound and one", fault="bug")
    assert done.ret == 1 and "compiler.py:20: RuntimeError" in output(done)
    assert "  replay   pytest 'ops/test_ops.py::test_within_bound[add-f32-one-M" in output(done)
    (row,) = results(project)
    assert (row.status, row.reason) == ("failed", "RuntimeError: adapter broke")


def test_a_full_disk_ends_the_run_with_its_own_code(project: pytest.Pytester) -> None:
    (project.path / "runs").mkdir()
    done = run(project, "--record", "/dev/full/no")
    assert done.ret == 7 and "opening the run record: path=/dev/full/no" in output(done)


def test_a_disk_that_fills_during_the_run_keeps_what_was_recorded(project: pytest.Pytester) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
    (project.path / "conftest.py").write_text(limit + (project.path / "conftest.py").read_text())
    done = run(project, process=True)
    assert done.ret == 7
    assert "writing the run record: path=runs/" in output(done)
    kept = rows(project)
    assert isinstance(kept[0], Run) and len(kept) > 1


def test_shards_add_up_to_exactly_the_whole(project: pytest.Pytester) -> None:
    for name in ("rms_norm", "softmax"):
        shutil.copy(ROOT / "ops" / f"{name}.py", project.path / "ops")

    def collected(*arguments: str) -> list[str]:
        done = run(project, "--collect-only", "-q", *arguments)
        return sorted(line for line in done.outlines if "::" in line)

    parts = [collected("--shard", f"{i}/3") for i in (1, 2, 3)]
    assert all(parts)
    assert sorted(parts[0] + parts[1] + parts[2]) == collected()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_a_unit_is_never_divided_and_shards_are_about_equal(parts: int) -> None:
    units = [name for name, size in zip("abcdefgh", (5, 1, 9, 2, 2, 7, 1, 3), strict=True) for _ in range(size)]
    shards = [share(units, part, parts) for part in range(1, parts + 1)]
    assert [sum(each) for each in zip(*shards, strict=True)] == [1] * len(units)
    for unit in set(units):
        assert sum(any(m for m, u in zip(shard, units, strict=True) if u == unit) for shard in shards) == 1
    assert max(map(sum, shards)) - min(map(sum, shards)) <= max(units.count(unit) for unit in units)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "z80"), "target='z80', expected one of one, two, away"),
        (("--backend", "nothing"), "name='nothing', expected one of"),
        (("--shard", "3/2"), "--shard='3/2', expected i/n"),
        (("ops/test_ops.py::test_within_bound[add-f32-one-M3]",), "'M3' names ['M'], expected ['M', 'N']"),
    ],
)
def test_bad_options_are_usage_errors_with_one_message(
    project: pytest.Pytester, arguments: tuple[str, ...], message: str
) -> None:
    done = run(project, *arguments)
    assert done.ret == 4 and message in output(done)
    assert "Traceback" not in output(done)


def test_markers_and_isa_select_cases(project: pytest.Pytester) -> None:
    def targets(*arguments: str) -> set[str]:
        done = run(project, "--collect-only", "-q", *arguments)
        return set(re.findall(r"\[add-f32-(\w+)\]", output(done)))

    assert targets("-m", "add and two") == {"two"}
    assert targets("--target", "isa") == {"one", "two"}
    assert targets("--target", "away") == {"away"}
    assert targets("-m", "one and two") == set()


def test_a_stored_worst_input_is_run_first(project: pytest.Pytester) -> None:
    line = {"name": "add", "shape": "M1N7", "code": "0x0", "headroom": 1.5}
    (project.path / "ops" / "worst.jsonl").write_text(json.dumps(line) + "\n")
    done = run(project, "-k", "within_bound and one", "--profile", "quick", fault="tail")
    assert done.ret == 1 and "add-f32-one-M1N7" in output(done)
    (row,) = results(project)
    assert row.examples <= 3


def test_a_deep_run_keeps_the_worst_inputs_it_found(project: pytest.Pytester) -> None:
    shutil.copy(ROOT / "ops" / "rms_norm.py", project.path / "ops")
    (project.path / "ops" / "add.py").unlink()
    arguments = ("--profile", "deep", "-k", "within_bound", "--backend", "torch_eager")
    done = run(project, *arguments)
    assert done.ret == 0
    (line,) = (project.path / "ops" / "worst.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert kept["name"] == "rms_norm" and 0 < kept["headroom"] <= 1
    first, (row,) = rows(project)[0], results(project)
    assert first.seed != 0 and row.examples > 1000 and row.metric("headroom") == kept["headroom"]


@pytest.mark.parametrize(("fault", "status"), [("limit", "failed"), ("skip", "not_run")])
def test_a_test_that_was_cut_short_is_never_recorded_as_ok(project: pytest.Pytester, fault: str, status: str) -> None:
    """pytest's own outcomes, such as that of a time limit, are not of type Exception."""
    run(project, "-k", "within_bound and one", fault=fault)
    assert [result.status for result in results(project)] == [status]
