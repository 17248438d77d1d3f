"""``assay agreement``: which targets give the same bits, and how far apart the others are."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import Annotated

import typer
from rich.table import Table

from assay import agreement as book
from assay.cli.common import RUNS, AsJson, Records, out, print_json
from assay.cli.ledger import read_records
from assay.errors import UsageError


def agreement(
    records: Records = RUNS,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="Also the rows and pairs that agree to the bit.")] = False,
) -> None:
    """Print how far apart targets are, in units of the last place: per op, mode, variant, and per pair of targets."""
    table = book.agreements(read_records(records))
    if not table:
        raise UsageError(
            f"comparing targets: no two targets have results of the same case in records={records}; write some with "
            f"`pytest ops --record {records}`"
        )
    pairs = list(book.pairs(table))
    if as_json:
        rows = [
            {**asdict(row), "ulps": _finite(row.ulps), "pairs": [[a, b, _finite(d)] for a, b, d in row.pairs]}
            for row in table
        ]
        print_json({"rows": rows, "pairs": [{**asdict(pair), "ulps": _finite(pair.ulps)} for pair in pairs]})
        return
    out.print(_rows([row for row in table if every or row.ulps]))
    out.print(_pairs([pair for pair in pairs if every or pair.ulps]))
    out.print(book.summary(table))


def _finite(value: float) -> float | None:
    """JSON has no infinity: null says that a NaN, an infinity or an integer differs."""
    return None if value == inf else value


def _rows(table: list[book.Agreement]) -> Table:
    shown = Table(box=None, header_style="bold")
    shown.add_column("case", no_wrap=True)
    shown.add_column("targets", justify="right")
    shown.add_column("apart", justify="right", no_wrap=True)
    shown.add_column("groups that agree to the bit", overflow="fold")
    for row in table:
        targets = str(sum(map(len, row.groups)))
        groups = " | ".join(", ".join(group) for group in row.groups[1:])
        shown.add_row(
            book.label(row.subject), targets, book.distance(row.ulps), f"all others | {groups}" if groups else "all"
        )
    return shown


def _pairs(pairs: list[book.Pair]) -> Table:
    shown = Table(box=None, header_style="bold")
    for column in ("one", "other"):
        shown.add_column(column, no_wrap=True)
    for column in ("cases", "equal", "apart"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("most in", overflow="fold")
    for pair in pairs:
        shown.add_row(pair.one, pair.other, str(pair.compared), str(pair.equal), book.distance(pair.ulps), pair.worst)
    return shown
