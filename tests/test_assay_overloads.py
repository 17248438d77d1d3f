"""Overloads as data: a correct compiler passes, and one fault in one element type fails that type, for its reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from sample_records import run_row
from typer.testing import CliRunner

from assay import backends, coverage, coverage_page, ledger
from assay.backends.protocol import Claim, Finding, NotRunHere, Program, Unsupported
from assay.backends.torch_eager import EagerBackend, EagerCompiled
from assay.bench import Bench
from assay.cli import app
from assay.compare import Mismatch
from assay.explore import PROFILES
from assay.overloads.check import OverloadCheck
from assay.overloads.spec import NAMES, TYPES, Overload, registry
from assay.record.rows import CaseKey, Result
from assay.record.writer import Writer

OPS = Path(__file__).parents[1] / "ops"
Change = Callable[[list[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class Changed(EagerCompiled):
    change: Change = lambda results: results

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        return self.change([result.clone() for result in super().run(*inputs)])


@dataclass(frozen=True)
class ChangedBackend(EagerBackend):
    """Eager, with every result changed after it was computed."""

    change: Change = lambda results: results

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        compiled = super().compile(program, target, quant=quant)
        return Changed(compiled.module, compiled.artifact, change=self.change)


class NoHalves(EagerBackend):
    """Cannot compile f16, and crashes on i8."""

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        types = {tensor.dtype for tensor in program.example}
        if torch.float16 in types:
            raise Unsupported("no f16 here")
        if torch.int8 in types:
            raise Finding("SIGILL")
        return super().compile(program, target, quant=quant)


@dataclass(frozen=True)
class Broken(EagerCompiled):
    """On an emulator that stops at f16."""

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        if torch.float16 in {tensor.dtype for tensor in inputs}:
            raise NotRunHere("the emulator failed an assertion")
        return super().run(*inputs)


class BrokenBackend(EagerBackend):
    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        compiled = super().compile(program, target, quant=quant)
        return Broken(compiled.module, compiled.artifact)


def check(name: str, backend: EagerBackend | None = None, profile: str = "ci") -> OverloadCheck:
    return OverloadCheck(Bench.of(backend or EagerBackend()), registry(OPS)[name], "host", PROFILES[profile], OPS)


def only(dtype: torch.dtype, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda results: [change(r) if r.dtype == dtype else r for r in results]


def tail_dropped(x: torch.Tensor) -> torch.Tensor:
    """The last element of a long enough row is what was there before."""
    if x.dim() and x.shape[-1] > 16:
        x[..., -1] = 77
    return x


FAULTS = [
    ("aten.mul.Tensor", torch.float32, tail_dropped, "(the tail)"),
    ("aten.mul.Tensor", torch.int16, tail_dropped, "(the tail)"),
    ("aten.mul.Tensor", torch.float16, lambda x: torch.nextafter(x, torch.zeros_like(x)), "outside its bound"),
    ("aten.maximum.default", torch.bfloat16, lambda x: x.nan_to_num(1.0, float("inf"), -float("inf")), "wrong nan"),
    ("aten.neg.default", torch.float64, lambda x: x + 0.0, "wrong sign of zero"),
    ("aten.add.Tensor", torch.uint8, lambda x: x.short().clamp(0, 254).byte(), "outside its bound"),
    ("aten.add.Tensor", torch.int64, lambda x: x.int(), "wrong type torch.int32, want torch.int64"),
]


@pytest.mark.parametrize("name, dtype, change, reason", FAULTS, ids=[f"{f[0]}-{f[1]}-{f[3]}" for f in FAULTS])
def test_a_fault_in_one_type_fails_that_type(name, dtype, change, reason):
    here = check(name, ChangedBackend(change=only(dtype, change)))
    with pytest.raises(Mismatch, match="replay") as caught:
        here.run()
    assert reason in str(caught.value)
    failed = [row["case"]["dtype"] for row in here.facts("failed", "") if row["status"] == "failed"]
    assert failed == [NAMES[dtype]]


def test_eager_passes_and_every_type_has_a_row():
    here = check("aten.mul.Tensor")
    here.run()
    rows = here.facts("ok", "")
    assert [row["case"]["dtype"] for row in rows] == list(here.overload.types) == list(TYPES)
    assert all(row["status"] == "ok" and row["examples"] for row in rows)


def test_sizes_that_kill_pytorch_are_those_that_the_specs_say():
    """Each in a process of its own, which must die by a signal: a reason that no longer holds has to go."""
    every = [(overload, axis) for overload in registry(OPS).values() for axis in overload.fatal]
    assert every
    for overload, axis in every:
        shapes = [
            given.shape({name: 2 * (name != axis) for name in overload.axes}) for given in overload.forms[0].tensors
        ]
        code = f"import torch; torch.ops.{overload.name}(*map(torch.ones, {shapes}))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0, (overload.name, axis)


def test_a_fatal_axis_that_no_form_has_is_refused():
    with pytest.raises(ValueError, match=r"fatal names \['Z'\]"):
        replace(registry(OPS)["aten.neg.default"], fatal={"Z": "it dies"})


def test_types_that_cannot_be_compiled_or_crash_do_not_hide_the_others():
    here = check("aten.neg.default", NoHalves())
    with pytest.raises(Mismatch, match="SIGILL"):
        here.run()
    status = {row["case"]["dtype"]: (row["status"], row["reason"]) for row in here.facts("failed", "")}
    assert status["f16"] == ("unsupported", "no f16 here")
    assert status["i8"][0] == "failed"
    assert {status[name][0] for name in ("f64", "f32", "bf16", "i64", "u8")} == {"ok"}


def test_a_type_on_which_the_emulator_itself_fails_is_not_run_and_says_so():
    here = check("aten.neg.default", BrokenBackend())
    here.run()
    status = {row["case"]["dtype"]: (row["status"], row["reason"]) for row in here.facts("ok", "")}
    assert status.pop("f16") == ("not_run", "the emulator failed an assertion")
    assert {found for found, _ in status.values()} == {"ok"}


def test_an_overload_without_a_verdict_in_any_type_is_unsupported():
    @dataclass(frozen=True)
    class Nothing(EagerBackend):
        def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
            raise Unsupported("nothing")

    with pytest.raises(Unsupported, match="nothing"):
        check("aten.neg.default", Nothing()).run()


def test_a_type_left_out_is_not_run():
    overload = replace(registry(OPS)["aten.neg.default"], without={"f64": "for this test"})
    assert isinstance(overload, Overload)
    assert "f64" not in overload.types and "bool" in overload.refused_types


def test_the_quick_profile_takes_one_type_and_the_same_every_time():
    first, second = check("aten.mul.Tensor", profile="quick"), check("aten.mul.Tensor", profile="quick")
    assert first.calls() == second.calls()
    assert len({call.dtype for call in first.calls()}) == 1


def test_every_form_is_computed_by_pytorch_in_some_type_and_one_that_is_not_fails():
    """Else it would be checked on nothing, and pass."""
    forms = [(overload, form) for overload in registry(OPS).values() for form in overload.all_forms]
    assert not [(o.name, form.title) for o, form in forms if not any(o.accepts(name, form) for name in o.types)]
    empty = replace(registry(OPS)["aten.mul.Tensor"], without=tuple(TYPES))
    with pytest.raises(Finding, match=r"of aten\.mul\.Tensor in no type: nothing to check"):
        OverloadCheck(Bench.of(EagerBackend()), empty, "host", PROFILES["ci"], OPS).run()


@dataclass(frozen=True)
class Clamping(EagerCompiled):
    """Takes an index out of range for the last one."""

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        return super().run(*(x.clamp(max=6) if x.dtype == torch.int64 else x for x in inputs))


class ClampingBackend(EagerBackend):
    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        compiled = super().compile(program, target, quant=quant)
        return Clamping(compiled.module, compiled.artifact)


class NoFloats(EagerBackend):
    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        if any(tensor.is_floating_point() for tensor in program.example):
            raise Finding("the compiler crashed")
        return super().compile(program, target, quant=quant)


def test_an_index_out_of_range_must_be_refused():
    check("aten.index_select.default", profile="quick").run()
    with pytest.raises(Mismatch, match=r"tensor 1 holds 1099511627776 alone: got a result, want an error"):
        check("aten.index_select.default", ClampingBackend(), profile="quick").run()


@dataclass(frozen=True)
class Forgiving(EagerCompiled):
    """Gives something where PyTorch gives nothing."""

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        try:
            return super().run(*inputs)
        except (IndexError, RuntimeError):
            return [torch.zeros(())]


class ForgivingBackend(EagerBackend):
    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        compiled = super().compile(program, target, quant=quant)
        return Forgiving(compiled.module, compiled.artifact)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aten.remainder.Scalar_Tensor", r"of 5: tensor 0 holds 0 alone: got a result"),
        ("aten.amax.default", r"=0: got a result, want an error"),
        ("aten.addmm.default", r"a rank that PyTorch refuses: tensor \d as \[.*\]: got a result"),
    ],
)
def test_a_result_where_pytorch_has_none_is_a_failure(name: str, message: str):
    with pytest.raises(Mismatch, match=message):
        check(name, ForgivingBackend()).run()


def test_a_type_that_pytorch_refuses_must_not_crash_the_compiler():
    check("aten.bitwise_and.Scalar").run()
    with pytest.raises(Mismatch, match=r"a type that PyTorch refuses: f64: .*the compiler crashed"):
        check("aten.bitwise_and.Scalar", NoFloats()).run()


def record(name: str, dtype: str, target: str, status: str) -> Result:
    key = CaseKey(f"{name}-{dtype}-{target}", "overload", name, target, dtype)
    reason = "" if status == "ok" else "because"
    return Result(key, "test_overload", status, reason, examples=14, run=run_row().run)  # type: ignore[arg-type]


def test_coverage_joins_claims_with_what_was_run(tmp_path):
    claims = [
        Claim("aten.a.default", True, "covered", "loop"),
        Claim("aten.b.default", True, "missing", "values decide"),
    ]
    results = [
        record("aten.a.default", "f16", "t1", "ok"),
        record("aten.a.default", "f64", "t1", "ok"),
        record("aten.a.default", "f64", "t2", "ok"),
        record("aten.a.default", "f16", "t2", "failed"),
    ]
    table = coverage.rows(claims, ledger.rows(results))
    a, b = table
    assert (a.ok, a.failed) == ({"t1": ["f64", "f16"], "t2": ["f64"]}, {"t2": ["f16"]})
    assert not b.checked
    assert coverage.totals(table)["t1"] == {"overloads": 1, "cells": 2, "failed": 0, "unsupported": 0, "not_run": 0}
    assert coverage.totals(table)["t2"]["overloads"] == 0
    assert coverage.everywhere(table) == 0
    assert coverage.verdict(a) == "f64; f16 on t2: failed: because"
    page = coverage_page.markdown(table)
    assert "| `aten.a.default` | core | loop | f64; f16 on t2: failed: because |" in page
    assert "| values decide | `aten.b.default` (core) |" in page


def test_an_overload_is_ok_only_where_every_type_of_its_spec_is():
    claims = [Claim(name, True, "covered", "loop") for name in ("aten.sin.default", "aten.t.default")]
    specs = registry(OPS)
    sin = specs["aten.sin.default"].types
    results = [record("aten.sin.default", dtype, target, "ok") for dtype in sin for target in ("t1", "t2")]
    table = coverage.rows(claims, ledger.rows(results[:-1]), specs)
    assert {target: row["overloads"] for target, row in coverage.totals(table).items()} == {"t1": 1, "t2": 0}
    assert coverage.everywhere(table) == 0
    assert f"{sin[-1]} on t2: no record" in coverage_page.markdown(table)
    assert coverage.everywhere(coverage.rows(claims, ledger.rows(results), specs)) == 1


def test_the_page_of_coverage_has_every_overload_and_reason_of_today():
    """What no run has a say in; the rest of a line is as new as the record it was made from."""
    table = coverage.rows(backends.load("anvil").coverage(), [], registry(OPS))
    today = coverage_page.facts(table)
    page = (OPS.parent / "docs" / "coverage.md").read_text()
    stale = [line for line in today if f"\n{line}" not in page]
    assert stale == [], "write the page again: assay coverage --markdown > docs/coverage.md"
    assert len(re.findall("^\\| `", page, re.MULTILINE)) == sum(line.startswith("| `") for line in today)


def test_assay_coverage_prints_every_core_overload(tmp_path):
    writer = Writer(tmp_path / "run.jsonl")
    writer.write(run_row())
    writer.write(record("aten.add.Tensor", "f32", "x86_64-avx2", "ok"))
    writer.close()
    result = CliRunner().invoke(app, ["coverage", "--records", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["overloads"]}
    core = [row for row in rows.values() if row["core"]]
    assert len(core) == len(_core())
    assert {row["state"] for row in core} <= {"covered", "decomposed", "missing", "left out"}
    assert rows["aten.add.Tensor"]["ok"] == {"x86_64-avx2": ["f32"]}
    assert rows["aten.randn.default"]["state"] == "left out"


#: Compiled and not compared by value: what has none, and what returns a Python number.
WITHOUT_VALUES = {
    *(f"aten.{name}" for name in ("empty.memory_format", "empty_like.default", "empty_strided.default")),
    *(f"aten.{name}" for name in ("new_empty.default", "sym_numel.default", "sym_size.int")),
    *(f"aten.{name}" for name in ("sym_storage_offset.default", "sym_stride.int", "sym_is_contiguous.default")),
}


def test_every_overload_that_is_compiled_has_a_spec_and_every_other_one_a_reason():
    claims = backends.load("anvil").coverage()
    compiled = {claim.name for claim in claims if claim.state in ("covered", "decomposed")}
    library = {name for name in compiled if not name.startswith("anvil.")}  # those are OpSpecs of the same folder
    assert library - registry(OPS).keys() == WITHOUT_VALUES
    assert registry(OPS).keys() <= library
    assert [claim.name for claim in claims if not claim.how] == []


def _core() -> list[object]:
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    names = {(schema.name.removeprefix("aten::"), schema.overload_name or "default") for schema in schemas}
    packets = [(getattr(torch.ops.aten, name, None), overload) for name, overload in sorted(names)]
    overloads = [getattr(packet, overload, None) for packet, overload in packets]
    return [overload for overload in overloads if torch.Tag.core in getattr(overload, "tags", ())]
