"""``assay coverage``: every overload, what the compiler claims, and what was run and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from assay import coverage as book
from assay import coverage_page, ledger
from assay.cli.common import RUNS, AsJson, BackendName, Records, backend, out, print_json
from assay.overloads.spec import registry
from assay.record.writer import read
from assay.tokens.registry import project_root

Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown page and nothing else.")]


def coverage(
    records: Records = RUNS, as_json: AsJson = False, markdown: Markdown = False, name: BackendName = "anvil"
) -> None:
    """Print every overload: core or not, covered, decomposed, missing or left out, and the types that are ok."""
    found = ledger.rows(read(records)) if records.exists() else []
    table = book.rows(backend(name).coverage(), found, registry(project_root() / "ops"))
    if as_json:
        print_json(book.as_json(table))
    elif markdown:
        typer.echo(coverage_page.markdown(table), nl=False)
    else:
        out.print(book.render(table))
