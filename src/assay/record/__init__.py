"""Run records: append-only JSON Lines, one file per run, the only truth every table and page is computed from."""

from assay.record.rows import CaseKey, Metric, Note, Result, Row, Run
from assay.record.writer import RecordError, Writer

__all__ = ["CaseKey", "Metric", "Note", "RecordError", "Result", "Row", "Run", "Writer"]
