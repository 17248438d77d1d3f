"""The panel layout of a weight matrix [N, K]: [ceil(N / width)][K][width], the last panel padded with zeros.

One step of the matrix product reads ``width`` neighbouring outputs' weights of one k as whole, aligned vectors, in the
order they lie in memory; no mask is ever needed to load them.
"""

from __future__ import annotations

from dataclasses import dataclass

from anvil.kernels.dsl import Ref, Val
from anvil.targets.base import Target


@dataclass(frozen=True)
class Panel:
    """``width`` outputs side by side, held in ``vectors`` vectors of ``lanes`` elements."""

    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def layout(self) -> str:
        return f"panel{self.width}"

    def count(self, outputs: int) -> int:
        """Panels that ``outputs`` outputs take."""
        return -(-outputs // self.width)

    def load(self, source: Ref, *row: Val | int) -> list[Val]:
        """One row of ``width`` elements."""
        return [source.load(*row, vector * self.lanes, lanes=self.lanes) for vector in range(self.vectors)]


def panel_of(target: Target) -> Panel:
    """The panel that ``target``'s matrix kernel accumulates in registers.

    RISC-V groups registers, so there one long vector takes fewer instructions than several short ones.
    """
    vectors, lanes = target.gemm_tile[1], target.lanes(32)
    return Panel(1, vectors * lanes) if target.machine == "riscv64" else Panel(vectors, lanes)
