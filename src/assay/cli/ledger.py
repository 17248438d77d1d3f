"""``assay ledger``: what was checked, computed from the run records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from assay import ledger as book
from assay import matrix
from assay.cli.common import RUNS, AsJson, BackendName, Records, backend, out, print_json
from assay.errors import UsageError
from assay.record.rows import Row
from assay.record.writer import read
from assay.spec import registry
from assay.tokens.registry import models, project_root


def ledger(
    records: Records = RUNS,
    as_json: AsJson = False,
    recorded: Annotated[bool, typer.Option("--recorded", help="Only what the records have, no other cell.")] = False,
    counted: Annotated[
        bool, typer.Option("--matrix", help="Counts per mode, variant, op or layer, and target.")
    ] = False,
    backend_name: BackendName = "anvil",
) -> None:
    """Print the ledger: kind, name, target, dtype, quant, variant, status, examples, worst error/bound, executor.

    As JSON it has every cell of the matrix (ops/matrix.toml), those without a record with the reason. A terminal shows
    the recorded ones, and how many of all cells are well. --matrix counts the cells of ops and layers, and fails if one
    failed or fewer are ok than ops/matrix.toml asks for.
    """
    rows = book.rows(read_records(records))
    every = rows if recorded else all_cells(rows, backend_name)
    if as_json:
        print_json(book.as_json(every))
        return
    if counted:
        raise typer.Exit(0 if print_counts([row for row in every if row.kind in ("op", "layer")]) else 1)
    out.print(book.render(rows))
    if not recorded:
        out.print(matrix.summary(every))


def print_counts(every: list[book.LedgerRow]) -> bool:
    """The counts along every axis, and each reason why a cell is not ok. True if the matrix is as it must be."""
    rules = matrix.load(project_root() / "ops" / "matrix.toml")
    for axis in matrix.AXES:
        shown = Table(box=None, header_style="bold")
        shown.add_column(axis, no_wrap=True)
        for column in ("cells", "ok", "", "failed", "unsupported", "not_run", "mean nothing"):
            shown.add_column(column, justify="right", no_wrap=True)
        for row in matrix.counts(every, axis):
            numbers = (row.failed, row.unsupported, row.not_run, row.meaningless)
            shown.add_row(row.value, str(row.total), str(row.ok), f"{row.share:.1%}", *map(str, numbers))
        out.print(shown)
    for count, status, reason in matrix.reasons(every):
        out.print(f"{count} {status}: {reason}", soft_wrap=True, markup=False)
    out.print(matrix.summary(every))
    whole = matrix.Count.of("", every)
    return not whole.failed and whole.share >= rules.at_least


def all_cells(rows: list[book.LedgerRow], backend_name: str) -> list[book.LedgerRow]:
    """The ledger with a row for every cell of the matrix."""
    compiler, folder = backend(backend_name), project_root() / "ops"
    specs, known = registry(folder), models()
    statuses = {status.name: status for status in compiler.targets()}
    goldens = {spec.name: spec.quants for spec in specs.values()} | {spec.name: spec.quants for spec in known.values()}
    every = matrix.cells(specs, known, compiler.modes(), statuses)
    return matrix.complete(rows, every, matrix.load(folder / "matrix.toml"), statuses, goldens)


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
