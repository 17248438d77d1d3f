"""The ledger is what the records say."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from assay.ledger import LedgerRow, as_json, render, rows
from assay.record import CaseKey, Metric, Result


def result(check: str, status: str, headroom: float | None = None, **fields) -> Result:
    key = CaseKey("rms_norm-f32-neon", "op", "rms_norm", "neon")
    metrics = () if headroom is None else (Metric("headroom", headroom, "error/bound"),)
    return Result(key, check, status, examples=10, metrics=metrics, executor="qemu", **fields)


def row(*results: Result) -> LedgerRow:
    (found,) = rows(results)
    return found


def test_a_case_sums_its_checks_and_keeps_the_worst() -> None:
    found = row(result("a", "ok", 0.25), result("b", "ok", 0.5), result("c", "ok"))
    assert (found.status, found.examples, found.worst, found.executor) == ("ok", 30, 0.5, "qemu")


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["ok", "failed", "not_run"], "failed"),
        (["ok", "unsupported"], "ok"),
        (["unsupported", "unsupported"], "unsupported"),
        (["not_run"], "not_run"),
    ],
)
def test_status_of_a_case(statuses: list[str], status: str) -> None:
    assert row(*(result(str(i), s) for i, s in enumerate(statuses))).status == status


def test_the_reason_is_the_first_line_of_what_failed() -> None:
    assert row(result("a", "failed", reason="outside\n  worst 3 ulp")).reason == "outside"


def test_an_ok_case_says_which_checks_did_not_run() -> None:
    assert row(result("a", "ok"), result("b", "unsupported", reason="no plain weights")).reason == "b unsupported"


def test_a_later_result_replaces_an_earlier_one() -> None:
    assert row(result("a", "failed", reason="x", run="1"), result("a", "ok", 0.1, run="2")).status == "ok"


def test_a_failure_is_not_forgotten_within_its_run() -> None:
    assert row(result("a", "failed", reason="x", run="1"), result("a", "ok", 0.1, run="1")).status == "failed"


def test_targets_and_modes_are_rows_of_their_own() -> None:
    one = result("a", "ok")
    others = [replace(one, case=replace(one.case, id=i, target=t, quant=q)) for i, t, q in ("xab", "yac", "zad")]
    assert [(r.target, r.quant) for r in rows([one, *others])] == [("a", "b"), ("a", "c"), ("a", "d"), ("neon", "fp32")]


def test_json_and_terminal_show_the_same_rows() -> None:
    table = rows([result("a", "ok", 0.25), result("b", "not_run", reason="needs qemu-user")])
    (shown,) = as_json(table)
    assert shown["worst"] == 0.25 and shown["reason"] == "b not_run"
    text = io.StringIO()
    Console(file=text, width=160).print(render(table))
    assert all(word in text.getvalue() for word in ("rms_norm", "neon", "0.250", "qemu", "b not_run"))


def test_no_records_no_rows() -> None:
    assert rows([]) == []
