"""The kernel ABI: what every compiled kernel looks like from outside.

A kernel is an MLIR function ``@name(params..., %tid: index, %nthreads: index)`` over strided memrefs and scalars.
It never allocates, returns nothing, and writes only its ``out`` parameters (contract 1 of docs/architecture.md).
Code generation wraps it as ``name__packed(ptr words, i64 tid, i64 nthreads)`` where ``words`` is a flat array of
64-bit words in parameter order: a memref of rank r takes ``3 + 2r`` words (allocated pointer, aligned pointer,
offset, sizes, strides; offset, sizes and strides in elements), a scalar takes one (f32: its bits, zero-extended).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anvil.errors import InputError

Kind = Literal["in", "out", "inout", "scalar"]


@dataclass(frozen=True)
class Param:
    """One parameter. ``rank`` -1 marks a scalar; ``dtype`` is an MLIR element type name (f32, i64, i8, index...).

    ``layout`` names how the elements must be packed ("plain": as the shape says); see :meth:`check_layout`.
    """

    name: str
    kind: Kind
    dtype: str
    rank: int
    layout: str = "plain"

    @property
    def words(self) -> int:
        return 1 if self.rank < 0 else 3 + 2 * self.rank

    def check_layout(self, layout: str) -> None:
        """Raise :class:`InputError` unless a buffer packed as ``layout`` may be passed for this parameter."""
        if layout != self.layout:
            raise InputError(
                f"passing a weight to a kernel: parameter {self.name!r} expects layout={self.layout!r}, "
                f"got layout={layout!r}; pack the weight for the kernel's target and quantisation mode"
            )


@dataclass(frozen=True)
class Kernel:
    """A generated kernel, before code generation: its symbol, its parameters and its MLIR module text."""

    name: str
    params: tuple[Param, ...]
    mlir: str
    edges: tuple[tuple[str, int], ...] = ()  # named sizes where the schedule changes shape, e.g. ("N", 16)
