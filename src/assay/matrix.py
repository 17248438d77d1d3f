"""The matrix of what is checked: its meaningful cells are data (``ops/matrix.toml``), the rest has a reason."""

from __future__ import annotations

import fnmatch
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from assay.backends.protocol import TargetStatus
from assay.ledger import LedgerRow
from assay.record.rows import Status
from assay.spec import OpSpec
from assay.tokens.spec import ModelSpec


@dataclass(frozen=True)
class Cell:
    """One combination. ``name`` is of an op, a layer or a model."""

    kind: str
    name: str
    dtype: str
    quant: str
    variant: str
    target: str


@dataclass(frozen=True)
class Rule:
    """Patterns for a cell's fields, all of which must fit; a pattern with ``!`` in front must not."""

    patterns: Mapping[str, tuple[str, ...]]
    reason: str = ""

    def fits(self, cell: Cell) -> bool:
        return all(_any(patterns, getattr(cell, field)) for field, patterns in self.patterns.items())


def _any(patterns: Sequence[str], value: str) -> bool:
    """Whether some pattern fits and none that begins with ``!`` does; only of the latter, whether none does."""
    forbidden = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    if any(fnmatch.fnmatchcase(value, pattern) for pattern in forbidden):
        return False
    return not wanted or any(fnmatch.fnmatchcase(value, pattern) for pattern in wanted)


@dataclass(frozen=True)
class Matrix:
    """What the file says.

    ``where_it_runs``: cells that count only on a machine that can run their target. ``at_least``: the share of the
    cells that count which must be ok. ``thorough``: cells without a mode that the quick profile leaves out.
    """

    meaningless: tuple[Rule, ...] = ()
    quick: tuple[Rule, ...] = field(default=())
    where_it_runs: tuple[Rule, ...] = ()
    thorough: tuple[Rule, ...] = ()
    at_least: float = 1.0

    def why_not(self, cell: Cell) -> str:
        """Why a cell means nothing; empty for a meaningful one."""
        return next((rule.reason for rule in self.meaningless if rule.fits(cell)), "")

    def wanted(self, cell: Cell, *, thorough: bool) -> bool:
        """Whether a run checks the cell, as far as its mode goes."""
        if cell.quant != "fp32" and self.why_not(cell):
            return False
        if thorough or any(rule.fits(cell) for rule in self.quick):
            return True
        return cell.quant == "fp32" and not any(rule.fits(cell) for rule in self.thorough)


#: No rules: every cell is meaningful, and quick.
EVERYTHING = Matrix(quick=(Rule({}),))
_SECTIONS = ("meaningless", "quick", "where_it_runs", "thorough")
_FIELDS = {"names": "name", "quants": "quant", "variants": "variant", "targets": "target", "kinds": "kind"}


@cache
def load(path: Path) -> Matrix:
    """Read the file; without one every cell is meaningful. Raises ``ValueError`` for what it does not understand."""
    if not path.is_file():
        return EVERYTHING
    data = tomllib.loads(path.read_text())
    if unknown := data.keys() - {"at_least", *_SECTIONS}:
        raise ValueError(
            f"reading {path}: unknown sections {sorted(unknown)}, expected at_least, {', '.join(_SECTIONS)}"
        )
    rules = {part: tuple(_rule(path, entry) for entry in data.get(part, ())) for part in _SECTIONS}
    return Matrix(**rules, at_least=float(data.get("at_least", 1.0)))


def _rule(path: Path, entry: Mapping[str, object]) -> Rule:
    if unknown := entry.keys() - {*_FIELDS, "reason"}:
        raise ValueError(f"reading {path}: unknown fields {sorted(unknown)}, expected {', '.join(_FIELDS)} and reason")
    patterns = {_FIELDS[name]: tuple(value) for name, value in entry.items() if name != "reason"}  # type: ignore[arg-type]
    return Rule(patterns, str(entry.get("reason", "")))


def cells(
    specs: Mapping[str, OpSpec],
    models: Mapping[str, ModelSpec],
    modes: Mapping[str, Sequence[str]],
    targets: Iterable[str],
) -> Iterator[Cell]:
    """Every cell there is, meaningful or not. ``modes`` are the backend's: ``{"quant": .., "attention": ..}``."""
    targets, quants = list(targets), modes.get("quant", ("fp32",))
    for spec in specs.values():
        variants = modes.get(spec.modes, ()) if spec.modes else ("",)
        for variant in variants:
            for fmt in spec.dtypes:
                for quant in quants:
                    for target in targets:
                        yield Cell(spec.kind, spec.name, fmt.name, quant, variant, target)
    for model in models.values():
        for quant in quants:
            for target in targets:
                yield Cell("model", model.name, "f32", quant, "", target)


def complete(
    rows: Iterable[LedgerRow],
    every: Iterable[Cell],
    matrix: Matrix,
    statuses: Mapping[str, TargetStatus],
    goldens: Mapping[str, Sequence[str]],
) -> list[LedgerRow]:
    """The ledger with a row for every cell: one that no record has says why. ``goldens``: modes of each name."""
    found = {(row.kind, row.name, row.dtype, row.quant, row.variant, row.target): row for row in rows}
    for cell in every:
        key = (cell.kind, cell.name, cell.dtype, cell.quant, cell.variant, cell.target)
        if key in found:
            continue
        why = matrix.why_not(cell)
        status = statuses.get(cell.target)
        verdict: Status = "not_run"
        if why:
            verdict, reason = "unsupported", why
        elif cell.quant not in goldens.get(cell.name, ()):
            verdict, reason = "unsupported", f"no golden for quant={cell.quant}"
        elif status is not None and not status.runs:
            reason = status.reason
        else:
            reason = "not in these records"
        found[key] = LedgerRow(
            cell.kind,
            cell.name,
            cell.target,
            cell.dtype,
            cell.quant,
            cell.variant,
            verdict,
            examples=0,
            worst=None,
            executor="",
            reason=reason,
            meaningful=not why,
        )
    for key, row in found.items():
        cell = Cell(row.kind, row.name, row.dtype, row.quant, row.variant, row.target)
        rule = next((rule for rule in matrix.where_it_runs if rule.fits(cell)), None)
        if rule is not None and row.status == "not_run":
            found[key] = replace(row, meaningful=False, reason=f"{rule.reason}: {row.reason}")
    return sorted(found.values(), key=lambda r: (r.kind, r.name, r.target, r.dtype, r.quant, r.variant))


@dataclass(frozen=True)
class Count:
    """How many cells of one value of an axis have which status; ``total`` are those that mean something."""

    value: str
    ok: int
    failed: int
    unsupported: int
    not_run: int
    meaningless: int

    @classmethod
    def of(cls, value: str, rows: Iterable[LedgerRow]) -> Count:
        seen = Counter(row.status if row.meaningful else "meaningless" for row in rows)
        return cls(value, *(seen[name] for name in ("ok", "failed", "unsupported", "not_run", "meaningless")))

    @property
    def total(self) -> int:
        return self.ok + self.failed + self.unsupported + self.not_run

    @property
    def share(self) -> float:
        """Of the cells that mean something, those that are ok."""
        return self.ok / self.total if self.total else 1.0


#: What the matrix is made of: fields of a ledger row.
AXES = ("quant", "variant", "name", "target")


def counts(rows: Sequence[LedgerRow], axis: str) -> list[Count]:
    """The cells of each value of one of ``AXES``, sorted; cells without a variant count as ``-``."""
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(getattr(row, axis) or "-", []).append(row)
    return [Count.of(value, each) for value, each in sorted(found.items())]


def reasons(rows: Iterable[LedgerRow]) -> list[tuple[int, str, str]]:
    """(cells, status, reason) of all cells that mean something and are not ok, the most frequent first."""
    seen = Counter((row.status, row.reason) for row in rows if row.meaningful and row.status != "ok")
    return [(count, status, reason) for (status, reason), count in seen.most_common()]


def summary(rows: Iterable[LedgerRow]) -> str:
    """``412 of 430 meaningful cells ok (95.8 %), 0 failed, 10 unsupported, 8 not_run; 2310 cells mean nothing``."""
    all_ = Count.of("", rows)
    share = f" ({all_.share:.1%})" if all_.total else ""
    others = ", ".join(f"{getattr(all_, name)} {name}" for name in ("failed", "unsupported", "not_run"))
    return f"{all_.ok} of {all_.total} meaningful cells ok{share}, {others}; {all_.meaningless} cells mean nothing"
