"""The page: one self-contained HTML file, computed from run records and nothing else."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from assay import agreement, ledger
from assay.dashboard import charts
from assay.dashboard.grid import grid
from assay.dashboard.speed import speeds
from assay.ledger import LedgerRow
from assay.measure import trend
from assay.record import RecordError
from assay.record.rows import Note, Row, Run


@dataclass(frozen=True)
class Totals:
    """The counts at the top of the page."""

    ok: int
    failed: int
    not_run: int
    unsupported: int
    examples: int
    worst: float | None

    @classmethod
    def of(cls, book: Sequence[LedgerRow]) -> Totals:
        count = {status: sum(row.status == status for row in book) for status in ledger.PRECEDENCE}
        measured = [row.worst for row in book if row.status == "ok" and row.worst is not None]
        examples = sum(row.examples for row in book)
        return cls(**count, examples=examples, worst=max(measured, default=None))


def write(rows: Iterable[Row], path: Path) -> Path:
    """Write the page of ``rows`` to ``path``, whole or not at all; the absolute path.

    Raises :class:`RecordError` if there is no room or no permission; a page that was there stays as it was.
    """
    text = render(list(rows))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(
            f"writing the page: out={path}: {error.strerror}; the records are untouched. "
            "Free some space or give another place, then run `assay report` again."
        ) from error
    return path.resolve()


def render(rows: Sequence[Row]) -> str:
    """The page as text: no script, no network, nothing outside the file."""
    environment = Environment(
        loader=PackageLoader("assay.dashboard", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": human_bytes, "sci": scientific, "number": "{:,}".format}
    book, compared = ledger.rows(rows), agreement.agreements(rows)
    return environment.get_template("page.html").render(
        grid=grid(book),
        totals=Totals.of(book),
        runs=[row for row in rows if isinstance(row, Run)],
        speeds=speeds(rows),
        trends=[each for each in trend.series(rows) if len(each.values) > 1],
        generations=notes(rows, "generation"),
        prompts=notes(rows, "prompts"),
        layers=notes(rows, "layers"),
        compared=compared,
        pairs=list(agreement.pairs(compared)),
        agreement=agreement,
        charts=charts,
    )


def notes(rows: Iterable[Row], name: str) -> list[tuple[Note, Any]]:
    """The last note called ``name`` of every case, with its data."""
    found = {row.case.id: row for row in rows if isinstance(row, Note) and row.name == name}
    return [(note, note.data) for note in found.values()]


def human_bytes(value: float) -> str:
    """``540 MB``: powers of a thousand, three digits."""
    if not value or not math.isfinite(value):
        return "0 B" if value == 0 else "unknown"
    power = min(int(math.log(value, 1000)), 4)
    return f"{value / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def scientific(value: float | None) -> str:
    """``1.2e-05``; a dash where there is no finite number."""
    return "—" if value is None or not math.isfinite(value) else f"{value:.1e}"
