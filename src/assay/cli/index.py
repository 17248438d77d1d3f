"""``assay index``: the run records as SQL tables."""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import create_engine
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from assay.cli.common import RUNS, Records, out
from assay.cli.ledger import read_records
from assay.errors import UsageError
from assay.index import rebuild


def index(
    records: Records = RUNS,
    db: Annotated[str, typer.Option("--db", help="Database URL; default index.db beside the records.")] = "",
) -> None:
    """Rebuild the SQL index from the record files. The files stay the truth; the tables are replaced whole."""
    rows = read_records(records)
    folder = records if records.is_dir() else records.parent
    url = db or f"sqlite:///{folder / 'index.db'}"
    try:
        counts = rebuild(create_engine(url), rows)
    except (ArgumentError, NoSuchModuleError, DBAPIError, ModuleNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"writing the index: db={url!r}: {reason}; give a database URL such as sqlite:///x.db"
        ) from error
    out.print(f"{url}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
