"""``assay report``: the run records as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.common import RUNS, Records, out
from assay.cli.ledger import read_records
from assay.dashboard import page


def report(
    records: Records = RUNS,
    to: Annotated[
        Path | None, typer.Option("--out", help="Where to write it; default report.html beside them.")
    ] = None,
) -> None:
    """Write one self-contained HTML page: ledger, tokens, speed, run facts."""
    rows = read_records(records)
    folder = records if records.is_dir() else records.parent
    out.print(str(page.write(rows, to or folder / "report.html")), soft_wrap=True, markup=False)
