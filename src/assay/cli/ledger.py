"""``assay ledger``: what was checked, computed from the run records."""

from __future__ import annotations

from pathlib import Path

from assay import ledger as book
from assay.cli.common import RUNS, AsJson, Records, out, print_json
from assay.errors import UsageError
from assay.record.rows import Row
from assay.record.writer import read


def ledger(records: Records = RUNS, as_json: AsJson = False) -> None:
    """Print the ledger: kind, name, target, dtype, quant, variant, status, examples, worst error/bound, executor."""
    rows = book.rows(read_records(records))
    if as_json:
        print_json(book.as_json(rows))
    else:
        out.print(book.render(rows))


def read_records(folder: Path) -> list[Row]:
    """All rows of the records in ``folder``, or of one file. Raises :class:`UsageError` when there are none."""
    try:
        rows = list(read(folder)) if folder.exists() else []
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not rows:
        raise UsageError(
            f"reading run records: none in records={folder}; write some with `assay validate --model NAME` or "
            f"`pytest --record {folder}`"
        )
    return rows
