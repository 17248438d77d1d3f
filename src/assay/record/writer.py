"""Append-only JSON Lines: each row reaches the file whole, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from assay.record.rows import Row, decode, encode


class RecordError(Exception):
    """A row could not be written. What was written before stands. A command line ends with code 7."""

    exit_code = 7


class Writer:
    """Appends rows to one file. Each is one ``write`` of one line; a short write is taken back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise RecordError(self._message("opening", error)) from error

    def write(self, row: Row) -> None:
        """Append one row. Raises :class:`RecordError` if the disk is full or the file cannot be written."""
        line = json.dumps(encode(row), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise RecordError(self._message("writing", error)) from error
        if written != len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise RecordError(self._message("writing", OSError(28, "No space left on device")))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _message(self, doing: str, error: OSError) -> str:
        return (
            f"{doing} the run record: path={self.path}: {error.strerror}; rows recorded so far are kept. "
            "Free some space or give another folder for records, then run again."
        )


def read(*paths: Path) -> Iterator[Row]:
    """Rows of record files, or of every ``*.jsonl`` in a folder, in order of name.

    A last line without its newline, left by a killed writer, is not a row. Raises ``ValueError`` naming file and line
    for anything else that does not parse.
    """
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            yield from _read(file)


def _read(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield decode(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"reading a run record: {file}:{number}: {error}") from error
