"""The ledger: what was checked, computed from run records and nothing else. ok means ran here and was compared here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from assay.record.rows import CaseKey, Result, Row, Status

#: A row's status is the first of these that any of its checks has.
PRECEDENCE: tuple[Status, ...] = ("failed", "ok", "unsupported", "not_run")
COLOURS: dict[Status, str] = {"ok": "green", "failed": "red", "unsupported": "yellow", "not_run": "dim"}


@dataclass(frozen=True)
class LedgerRow:
    """One op, layer or model on one target in one dtype, mode and variant.

    ``worst`` is the largest error/bound over its checks, ``reason`` the first line of what failed, why it did not
    run, or which checks of an ok row did not run. A row that is not ``meaningful`` is of a combination that
    ops/matrix.toml rules out.
    """

    kind: str
    name: str
    target: str
    dtype: str
    quant: str
    variant: str
    status: Status
    examples: int
    worst: float | None
    executor: str
    reason: str
    meaningful: bool = True


def rows(records: Iterable[Row]) -> list[LedgerRow]:
    """The ledger of some records, sorted.

    Of a check recorded in several runs the last result counts; within one run a failure is never replaced.
    """
    latest: dict[tuple[str, str, str], Result] = {}
    for record in records:
        if isinstance(record, Result):
            key = record.case.id, record.case.shape, record.check
            before = latest.get(key)
            if before is None or before.status != "failed" or before.run != record.run:
                latest[key] = record
    grouped: dict[tuple[str, ...], list[Result]] = {}
    for result in latest.values():
        grouped.setdefault(_key(result.case), []).append(result)
    return [_row(key, grouped[key]) for key in sorted(grouped)]


def _key(case: CaseKey) -> tuple[str, ...]:
    return case.kind, case.name, case.target, case.dtype, case.quant, case.variant


def _row(key: tuple[str, ...], results: list[Result]) -> LedgerRow:
    status: Status = next(status for status in PRECEDENCE if any(r.status == status for r in results))
    deciding = [r for r in results if r.status == status]
    measured = [value for r in results if (value := r.metric("headroom")) is not None]
    kind, name, target, dtype, quant, variant = key
    return LedgerRow(
        kind,
        name,
        target,
        dtype,
        quant,
        variant,
        status,
        examples=sum(r.examples for r in results),
        worst=max(measured, default=None),
        executor=next((r.executor for r in deciding if r.executor), ""),
        reason=_reason(status, deciding, results),
    )


def _reason(status: Status, deciding: list[Result], results: list[Result]) -> str:
    if status != "ok":
        return next((r.reason.splitlines()[0] for r in deciding if r.reason), "")
    return "; ".join(
        f"{r.check} {r.status}" if r.status != "ok" else r.reason for r in results if r.reason or r.status != "ok"
    )


def as_json(table: Iterable[LedgerRow]) -> list[dict[str, Any]]:
    """Rows as JSON-ready data."""
    return [asdict(row) for row in table]


def render(table: Iterable[LedgerRow]) -> Table:
    """The ledger for a terminal; a name carries its variant."""
    shown = Table(box=None, header_style="bold")
    for column in ("kind", "name", "target", "dtype", "quant", "status"):
        shown.add_column(column, no_wrap=True)
    for column in ("examples", "error/bound"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("executor", overflow="ellipsis", no_wrap=True)
    shown.add_column("reason", overflow="fold", min_width=12)
    for row in table:
        worst = "" if row.worst is None else f"{row.worst:.3f}"
        name = f"{row.name}-{row.variant}" if row.variant else row.name
        status = f"[{COLOURS[row.status]}]{row.status}[/]"
        numbers = (str(row.examples), worst, row.executor, row.reason)
        shown.add_row(row.kind, name, row.target, row.dtype, row.quant, status, *numbers)
    return shown
