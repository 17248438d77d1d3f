"""Coverage: every overload of the operator library, what the compiler says of it, and what run records prove of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from assay.backends.protocol import Claim
from assay.ledger import LedgerRow
from assay.overloads.spec import TYPES, Overload


@dataclass(frozen=True)
class CoverageRow:
    """One overload.

    ``types`` are the element types that PyTorch has it in and its spec checks, ``without`` those that the spec leaves
    out, with the reason. ``ok``, ``failed``, ``unsupported`` and ``not_run`` have the types by target, as recorded;
    ``reasons`` why a type is not ok: by reason, pairs of type and target.
    """

    name: str
    core: bool
    state: str
    how: str
    types: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict[str, str])
    ok: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    failed: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    unsupported: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    not_run: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    reasons: dict[str, list[tuple[str, str]]] = field(default_factory=dict[str, "list[tuple[str, str]]"])

    @property
    def checked(self) -> bool:
        """Whether any record has a verdict on it."""
        return bool(self.ok or self.failed or self.unsupported)

    def whole(self, target: str) -> bool:
        """Whether it is ok on a target in every type that its spec checks (in all that are recorded, without one)."""
        recorded = {dtype for part in (self.ok, self.failed, self.unsupported) for dtype in part.get(target, ())}
        return bool(recorded) and (set(self.types) or recorded) <= set(self.ok.get(target, ()))


def rows(
    claims: Iterable[Claim], ledger: Iterable[LedgerRow], specs: Mapping[str, Overload] | None = None
) -> list[CoverageRow]:
    """One row per claim, and one per checked overload that no claim names."""
    specs = specs or {}
    found = {claim.name: _row(claim, specs.get(claim.name)) for claim in claims}
    for row in ledger:
        if row.kind != "overload":
            continue
        mine = found.setdefault(row.name, CoverageRow(row.name, False, "not claimed", ""))
        getattr(mine, row.status).setdefault(row.target, []).append(row.dtype)
        if row.status != "ok":
            mine.reasons.setdefault(f"{row.status}: {row.reason}", []).append((row.dtype, row.target))
    order = list(TYPES)
    for row in found.values():
        for part in (row.ok, row.failed, row.unsupported, row.not_run):
            for types in part.values():
                types.sort(key=order.index)
    return [found[name] for name in sorted(found)]


def _row(claim: Claim, spec: Overload | None) -> CoverageRow:
    types, without = (spec.types, spec.without) if spec else ((), {})
    return CoverageRow(claim.name, claim.core, claim.state, claim.how, types, dict(without))


def targets(table: Sequence[CoverageRow]) -> list[str]:
    """The targets that the records have a verdict on."""
    return sorted({target for row in table for part in (row.ok, row.failed, row.unsupported) for target in part})


def totals(table: Sequence[CoverageRow]) -> dict[str, dict[str, int]]:
    """By target: how many overloads are ok in every type, how many cells of an overload and a type are ok, and how many
    are not."""
    return {
        target: {
            "overloads": sum(row.whole(target) for row in table),
            "cells": sum(len(row.ok.get(target, ())) for row in table),
            "failed": sum(len(row.failed.get(target, ())) for row in table),
            "unsupported": sum(len(row.unsupported.get(target, ())) for row in table),
            "not_run": sum(len(row.not_run.get(target, ())) for row in table),
        }
        for target in targets(table)
    }


def everywhere(table: Sequence[CoverageRow]) -> int:
    """How many overloads are ok in every type on every target that any was checked on."""
    asked = targets(table)
    return sum(bool(asked) and all(row.whole(target) for target in asked) for row in table)


def as_json(table: Sequence[CoverageRow]) -> dict[str, Any]:
    """Rows and totals as JSON-ready data."""
    return {"totals": totals(table), "everywhere": everywhere(table), "overloads": [asdict(row) for row in table]}


def verdict(row: CoverageRow, asked: Sequence[str] = ()) -> str:
    """The types that are ok on every target ``asked`` (that it was checked on, without any), each exception with its
    reason, and the types that the spec leaves out with theirs."""
    asked = asked or targets([row])
    fine = [t for t in TYPES if asked and all(t in row.ok.get(target, ()) for target in asked)]
    parts = [" ".join(fine)] if fine else []
    parts += [f"{_cells(cells, asked)}: {reason}" for reason, cells in row.reasons.items()]
    parts += [f"{cells}: no record" for cells in [_cells(_absent(row, asked), asked)] if cells]
    return "; ".join([*parts, *(f"{dtype} left out: {reason}" for dtype, reason in row.without.items())])


def _absent(row: CoverageRow, asked: Sequence[str]) -> list[tuple[str, str]]:
    """Types of the spec and targets that no record has."""
    every = (row.ok, row.failed, row.unsupported, row.not_run)
    recorded = {(dtype, target) for part in every for target, types in part.items() for dtype in types}
    return [(dtype, target) for target in asked for dtype in row.types if (dtype, target) not in recorded]


def _cells(cells: Iterable[tuple[str, str]], asked: Sequence[str]) -> str:
    """Types and targets in words, targets with the same types together: ``f64 i8 on aarch64-neon and x86_64-avx2``."""
    types: dict[str, list[str]] = {}
    for dtype, target in cells:
        types.setdefault(target, []).append(dtype)
    by_types: dict[str, list[str]] = {}
    for target, found in types.items():
        by_types.setdefault(" ".join(sorted(found, key=list(TYPES).index)), []).append(target)
    places = {
        found: "every target" if where == list(asked) else " and ".join(where) for found, where in by_types.items()
    }
    return ", ".join(f"{found} on {where}" for found, where in places.items())


def render(table: Sequence[CoverageRow]) -> Table:
    """For a terminal."""
    shown = Table(box=None, header_style="bold")
    for column in ("overload", "core", "state", "how", "ok on every target asked"):
        shown.add_column(column, overflow="fold")
    for row in table:
        shown.add_row(row.name, "core" if row.core else "", row.state, row.how, verdict(row) if row.checked else "")
    return shown
