"""Where the accumulators of one panel start and where they go: bias, y, and the last panel that y has a part of."""

from __future__ import annotations

from dataclasses import dataclass

from anvil.kernels.dsl import Ref, Val, const, first_lanes, index
from anvil.kernels.flow import choose, for_, if_else
from anvil.kernels.panel import Panel

Vectors = list[Val]  # one per vector of a panel


@dataclass(frozen=True)
class Output:
    """y f32 [M, N] by panels. ``edge`` is a tile on the stack, f32 [rows, width], for a panel that hangs over N."""

    y: Ref
    bias: Ref | None
    panel: Panel
    edge: Ref

    @property
    def count(self) -> Val:
        """N."""
        return self.y.dim(1)

    def zeros(self) -> Vectors:
        return [const(0.0, "f32", lanes=self.panel.lanes) for _ in range(self.panel.vectors)]

    def start(self, which: Val) -> Vectors:
        """The bias of panel ``which``, or 0."""
        if self.bias is None:
            return self.zeros()
        columns = [which * self.panel.width + vector * self.panel.lanes for vector in range(self.panel.vectors)]
        masks = [first_lanes(self.count - column, self.panel.lanes) for column in columns]
        return [self.bias.load(c, lanes=self.panel.lanes, mask=mask) for c, mask in zip(columns, masks, strict=True)]

    def load(self, rows: list[Val], which: Val) -> list[Vectors]:
        """y at ``rows`` and the columns of panel ``which``; what lies beyond N is undefined."""
        column = which * self.panel.width

        def partial() -> list[Vectors]:
            with for_(0, index(len(rows))) as row, for_(0, self.count - column) as j:
                self.edge.store(self.y.load(rows[0] + row.index, column + j.index), row.index, j.index)
            return [self.panel.load(self.edge, row) for row in range(len(rows))]

        def whole() -> list[Vectors]:
            offsets = [column + vector * self.panel.lanes for vector in range(self.panel.vectors)]
            return [[self.y.load(row, offset, lanes=self.panel.lanes) for offset in offsets] for row in rows]

        return choose(column + self.panel.width <= self.count, whole, partial, like=[self.zeros()] * len(rows))

    def store(self, values: list[Vectors], first_row: Val, which: Val) -> None:
        """Write rows of accumulators to y from ``first_row``, at the columns of panel ``which`` that y has."""
        column = which * self.panel.width
        places = [(row, vector) for row in range(len(values)) for vector in range(self.panel.vectors)]
        with if_else(column + self.panel.width <= self.count) as (whole, partial):
            with whole:
                for row, vector in places:
                    self.y.store(values[row][vector], first_row + row, column + vector * self.panel.lanes)
            with partial:
                for row, vector in places:
                    self.edge.store(values[row][vector], row, vector * self.panel.lanes)
                with for_(0, index(len(values))) as row, for_(0, self.count - column) as j:
                    self.y.store(self.edge.load(row.index, j.index), first_row + row.index, column + j.index)
