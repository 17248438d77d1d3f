"""The SQL index over run records: rebuilt from the files at any time, never a source of anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sqlalchemy import JSON, Boolean, Column, Engine, Float, ForeignKey, Integer, MetaData, String, Table, Text, insert

from assay.record.rows import Note, Result, Row, Run

SCHEMA = MetaData()

RUNS = Table(
    "runs",
    SCHEMA,
    Column("run", String(64), primary_key=True),
    *(Column(name, Text) for name in ("started", "commit", "base", "testbed", "command", "backend", "profile")),
    Column("dirty", Boolean),
    Column("seed", Integer),
    Column("facts", JSON),
)
_CASE = ("id", "kind", "name", "target", "dtype", "quant", "variant", "shape", "spec")
RESULTS = Table(
    "results",
    SCHEMA,
    Column("result", Integer, primary_key=True),
    Column("run", ForeignKey("runs.run")),
    *(Column(name, Text) for name in (*_CASE, "check", "status", "reason", "executor", "artifact")),
    Column("examples", Integer),
    Column("seconds", Float),
)
METRICS = Table(
    "metrics",
    SCHEMA,
    Column("metric", Integer, primary_key=True),
    Column("result", ForeignKey("results.result")),
    *(Column(name, Text) for name in ("name", "unit", "direction", "kind")),
    Column("value", Float),
    Column("samples", JSON),
)
NOTES = Table(
    "notes",
    SCHEMA,
    Column("note", Integer, primary_key=True),
    Column("run", ForeignKey("runs.run")),
    *(Column(name, Text) for name in (*_CASE, "note_name")),
    Column("data", JSON),
)


def rebuild(engine: Engine, rows: Iterable[Row]) -> dict[str, int]:
    """Replace all tables of the index by what ``rows`` say, in one transaction; rows written per table."""
    tables: dict[Table, list[dict[str, Any]]] = {table: [] for table in SCHEMA.sorted_tables}
    for row in rows:
        if isinstance(row, Run):
            tables[RUNS].append({**asdict(row), "facts": dict(row.facts)})
        elif isinstance(row, Note):
            tables[NOTES].append({**asdict(row.case), "run": row.run, "note_name": row.name, "data": row.data})
        else:
            number = len(tables[RESULTS]) + 1
            tables[RESULTS].append(_result(row, number))
            tables[METRICS] += [{**asdict(m), "samples": list(m.samples), "result": number} for m in row.metrics]
    with engine.begin() as connection:
        SCHEMA.drop_all(connection)
        SCHEMA.create_all(connection)
        for table, values in tables.items():
            if values:
                connection.execute(insert(table), values)
    return {table.name: len(values) for table, values in tables.items()}


def _result(row: Result, number: int) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(row).items() if name not in ("case", "metrics")}
    return {**asdict(row.case), **fields, "result": number}
