"""Reading and writing a kernel's memory: one element, or 16 for the lanes of a vector, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anvil.kernels.dsl import LANES, Ref, Val, const, index, select, splat
from anvil.kernels.flow import choose, for_
from anvil.lower.generic.operands import Operand
from anvil.mlir import ir, memref, vector

_HALVES = ("f16", "bf16")  # moved as integers, see anvil.dtypes.memory_name


@dataclass(frozen=True)
class Window:
    """A memref argument and what is known of it. Positions have one index per dimension, the vector loop's last."""

    operand: Operand
    ref: Ref

    def load(self, at: Sequence[Val], mask: Val | None) -> Val:
        """The element at ``at``; or those of 16 turns of the vector loop from there, only where ``mask`` is set."""
        if self.operand.access == "uniform":
            return self._value(self.ref.load(*at))
        if self.operand.access == "unit":
            return self._value(self.ref.load(*at, lanes=LANES, mask=mask))
        *outer, first = at
        final = self.ref.dim(len(outer)) - 1
        lanes = [first + lane for lane in range(LANES)]
        if mask is not None:
            lanes = [select(lane < final, lane, final) for lane in lanes]
        return self._value(_vector([self.ref.load(*outer, lane) for lane in lanes]))

    def gather(self, indices: Sequence[Val], *, turn: Val | None, mask: Val | None) -> Val:
        """The element at computed indices, or 16 where some are vectors. ``turn``: only the last index varies, and
        these are consecutive turns of a loop from ``turn``. Zeros if there is no element at all."""
        some = const(1, "i1")
        for dim in range(len(indices)):
            some = some & (self.ref.dim(dim) > 0)
        lanes = None if all(i.lanes is None for i in indices) else LANES
        nothing = const(0, self._register(), lanes=lanes)
        return choose(some, lambda: self._gather(indices, turn, mask), lambda: nothing, nothing)

    def _gather(self, indices: Sequence[Val], turn: Val | None, mask: Val | None) -> Val:
        if all(i.lanes is None for i in indices):
            return self._value(self.ref.load(*indices))
        if turn is not None and self.operand.access == "unit":
            return self._value(self.ref.load(*indices[:-1], turn, lanes=LANES, mask=mask))
        if mask is not None:
            spread = [splat(i) if i.lanes is None else i for i in indices]
            indices = [select(mask, i, const(0, i.type)) for i in spread]
        places = [[i if i.lanes is None else i[lane] for i in indices] for lane in range(LANES)]
        return self._value(_vector([self.ref.load(*place) for place in places]))

    def store(self, value: Val, at: Sequence[Val], mask: Val | None) -> None:
        """Write one element, or 16, only where ``mask`` is set."""
        value = value.bits("i16") if self.operand.dtype in _HALVES else value
        if self.operand.access == "uniform":
            self.ref.store(value, *at)
            return
        value = splat(value) if value.lanes is None else value
        if self.operand.access == "unit":
            self.ref.store(value, *at, mask=mask)
            return
        *outer, first = at
        left = self.ref.dim(len(outer)) - first
        with for_(0, select(left < LANES, left, index(LANES))) as lane:
            element = vector.extract(value.ssa, [lane.index.ssa], [ir.ShapedType.get_dynamic_size()])
            self.ref.store(Val(element), *outer, first + lane.index)

    def prefetch(self, at: Sequence[Val]) -> None:
        """Ask for the line of the element at ``at``, to be written if this is written, as far as the second-level
        cache: the first is full of what is in use."""
        memref.prefetch(self.ref.ssa, [position.ssa for position in at], self.operand.written, 2, True)

    def _register(self) -> str:
        return {"ui8": "i8", "i1": "i8"}.get(self.operand.dtype, self.operand.dtype)

    def _value(self, loaded: Val) -> Val:
        return loaded.bits(self.operand.dtype) if self.operand.dtype in _HALVES else loaded


def _vector(lanes: list[Val]) -> Val:
    return Val(vector.from_elements(ir.VectorType.get([len(lanes)], lanes[0].type), [lane.ssa for lane in lanes]))
