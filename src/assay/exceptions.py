"""Exceptions to a rule of correctness, as data: which case, which check, on which values, why, and until when.

``ops/exceptions.toml`` holds them, one table each::

    [[exception]]
    case = "log_softmax-*-riscv64_*"   # case ids, with wildcards
    test = "test_special_values"
    values = "denormal"                # kind of values, a name in assay/strategies/values.py
    reason = "the target flushes denormals; see ..."
    expires = 2027-03-01

A failing example that an exception covers is counted and passes. An exception that has expired covers nothing any
more, and one that no example needed is itself a failure: both are to be taken out, or renewed with a reason.
"""

from __future__ import annotations

import datetime
import fnmatch
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from assay.errors import UsageError
from assay.strategies import values

FILE = "exceptions.toml"


@dataclass(frozen=True)
class Allowance:
    """One exception; ``expires`` is the first day on which it no longer holds."""

    case: str
    test: str
    values: str
    reason: str
    expires: datetime.date

    def covers(self, case: str, test: str) -> bool:
        """Whether it is about this check of this case."""
        return self.test == test and fnmatch.fnmatchcase(case, self.case)

    def __str__(self) -> str:
        return f"exception for {self.case} in {self.test} on {self.values} values ({self.reason}), until {self.expires}"


@cache
def read(path: Path) -> tuple[Allowance, ...]:
    """The exceptions in a file; none if there is no file. Raises :class:`UsageError` naming what is wrong in which."""
    if not path.exists():
        return ()
    try:
        entries = tomllib.loads(path.read_text()).get("exception", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"reading exceptions: {path}: {error}") from error
    return tuple(_parsed(entry, f"{path}, exception {number}") for number, entry in enumerate(entries, 1))


def _parsed(entry: dict[str, object], where: str) -> Allowance:
    names = {field.name for field in fields(Allowance)}
    if set(entry) != names:
        raise UsageError(f"reading exceptions: {where}: has {sorted(entry)}, expected exactly {sorted(names)}")
    texts = {name: str(entry[name]).strip() for name in names - {"expires"}}
    expires = entry["expires"]
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        raise UsageError(f"reading exceptions: {where}: expires={expires!r}, expected a date such as 2027-03-01")
    if texts["values"] not in values.NAMES:
        raise UsageError(
            f"reading exceptions: {where}: values={texts['values']!r}, expected one of {list(values.NAMES)}"
        )
    if len(texts["reason"].split()) < 3:
        raise UsageError(f"reading exceptions: {where}: reason={texts['reason']!r}, expected why, in words")
    return Allowance(**texts, expires=expires)


def holding(path: Path, case: str, test: str, today: datetime.date) -> tuple[Allowance, ...]:
    """The exceptions in force for one check of one case. Raises :class:`UsageError` for one that has expired."""
    found = tuple(allowance for allowance in read(path) if allowance.covers(case, test))
    for allowance in found:
        if today >= allowance.expires:
            raise UsageError(f"{allowance}: it has expired; mend the case, or renew it in {path} with today's reason")
    return found
