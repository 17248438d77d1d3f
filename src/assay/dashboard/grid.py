"""The ledger as a grid: one line for what was checked, one column for each target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from assay.ledger import COLOURS, LedgerRow

KINDS = ("op", "layer", "model")


@dataclass(frozen=True)
class Line:
    """One op, layer or model with its cells in the order of the grid's targets; None where no row is recorded."""

    kind: str
    name: str
    detail: str  # dtype, mode and variant
    cells: tuple[LedgerRow | None, ...]

    @property
    def label(self) -> str:
        return f"{self.name} {self.detail}".strip()


@dataclass(frozen=True)
class Reason:
    """Cells that share a status and its reason."""

    status: str
    reason: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """All lines, ops first, then layers, then models."""

    targets: tuple[str, ...]
    lines: tuple[Line, ...]

    def reasons(self) -> list[Reason]:
        """Why cells are not green, cells of one reason together."""
        found: dict[tuple[str, str], list[str]] = {}
        for line in self.lines:
            for cell in line.cells:
                if cell and cell.status != "ok":
                    key = cell.status, cell.reason or "no reason recorded"
                    found.setdefault(key, []).append(f"{line.label} on {cell.target}")
        return [Reason(*key, tuple(cells)) for key, cells in sorted(found.items(), key=lambda item: item[0])]


def grid(rows: Iterable[LedgerRow]) -> Grid:
    """Arrange ledger rows. Targets keep the order in which they first appear in the sorted ledger."""
    rows = list(rows)
    targets = tuple(sorted({row.target for row in rows}, key=_target_order))
    lines: dict[tuple[str, str, str], dict[str, LedgerRow]] = {}
    for row in rows:
        lines.setdefault((row.kind, row.name, _detail(row)), {})[row.target] = row
    ordered = sorted(lines, key=lambda key: (KINDS.index(key[0]) if key[0] in KINDS else len(KINDS), *key[1:]))
    return Grid(targets, tuple(Line(*key, tuple(lines[key].get(target) for target in targets)) for key in ordered))


def render(table: Grid) -> Table:
    """The grid for a terminal: the headroom in green, or the status."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("", no_wrap=True, style="dim")
    shown.add_column("error / bound", no_wrap=True)
    for target in table.targets:
        shown.add_column(target, justify="right", no_wrap=True)
    previous = ""
    for line in table.lines:
        kind = line.kind if line.kind != previous else ""
        previous = line.kind
        shown.add_row(kind, line.label, *(_cell(cell) for cell in line.cells))
    return shown


def _cell(cell: LedgerRow | None) -> Text:
    if cell is None:
        return Text("—", "dim")
    if cell.status == "ok":
        return Text("ok" if cell.worst is None else f"{cell.worst:.3f}", COLOURS["ok"])
    return Text(cell.status, COLOURS[cell.status])


def _detail(row: LedgerRow) -> str:
    parts = (row.variant, "" if row.dtype == "f32" else row.dtype, "" if row.quant == "fp32" else row.quant)
    return " ".join(part for part in parts if part)


def _target_order(target: str) -> tuple[int, str]:
    """x86 first, then Arm, then RISC-V: the order of the README."""
    families = ("host", "x86_64", "aarch64", "riscv64")
    family = next((i for i, name in enumerate(families) if target.startswith(name)), len(families))
    return family, target
