"""Keys and values as rows of f32, whatever they are stored as and wherever a cache puts them.

Storage: f32, f16 or bf16 (16-bit floats lie in memory as i16), or i8 codes with one f32 scale per key and head.
Places: a whole tensor [B, Hkv, T, D]; a ring, where position p lies in slot p mod capacity; pages [N, Hkv, P, D], where
position p of sequence b lies in slot p mod P of page table[b, p div P].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from anvil.attention.base import Element, Operands
from anvil.kernels.bits import from_bf16, from_f16
from anvil.kernels.dsl import Ref, Val, cast, index, splat
from anvil.targets.base import Target

Place = Literal["whole", "ring", "paged"]
_UNBOUNDED = 2**31 - 1  # a ring holds any position: only window and causality limit what is seen


@dataclass(frozen=True)
class Row:
    """Key or value of one position, from some component on: ``row.load(0, lanes=16)`` gives f32."""

    ref: Ref
    at: tuple[Val | int, ...]
    scale: Val | None
    read: Callable[[Val], Val]

    def load(self, column: Val | int, *, lanes: int | None = None, mask: Val | None = None) -> Val:
        value = self.read(self.ref.load(*self.at, column, lanes=lanes, mask=mask))
        if self.scale is None:
            return value
        return value * (self.scale if lanes is None else splat(self.scale, lanes))


@dataclass(frozen=True)
class Rows:
    """Keys or values of one head of one sequence, by position."""

    ref: Ref
    scales: Ref | None
    head: tuple[Val, Val]  # batch, key head
    place: Place
    table: Ref | None
    read: Callable[[Val], Val]

    def row(self, position: Val, column: Val | int = 0) -> Row:
        where = self._where(position)
        scale = None if self.scales is None else self.scales.load(*where)
        return Row(self.ref.at(*where, column, rank=1), (), scale, self.read)

    def block(self, position: Val, column: Val | int = 0) -> Callable[[Val | int], Row]:
        """Rows from ``position`` on, by number; their common address is computed once where they lie in order."""
        if self.place != "whole" or self.scales is not None:
            return lambda number: self.row(position + number, column)
        part = self.ref.at(*self.head, position, column, rank=2)
        return lambda number: Row(part, (number,), None, self.read)

    def _where(self, position: Val) -> tuple[Val, Val, Val]:
        batch, head = self.head
        if self.place == "whole":
            return batch, head, position
        if self.place == "ring":
            return batch, head, position % self.ref.dim(2)
        assert self.table is not None
        size = self.ref.dim(2)
        return cast(self.table.load(batch, position // size), "index"), head, position % size


def rows_of(o: Operands, head: tuple[Val, Val], place: Place, storage: Element, target: Target) -> tuple[Rows, Rows]:
    """Keys and values of a head."""

    def read(value: Val) -> Val:
        if storage == "f16":
            return from_f16(value, target)
        if storage == "bf16":
            return from_bf16(value)
        return cast(value, "f32")

    return (
        Rows(o.k, o.k_scale, head, place, o.table, read),
        Rows(o.v, o.v_scale, head, place, o.table, read),
    )


def positions(o: Operands, place: Place) -> Val:
    """How many positions the keys have room for."""
    if place == "ring":
        return index(_UNBOUNDED)
    if place == "paged":
        assert o.table is not None
        return o.table.dim(1) * o.k.dim(2)
    return o.k.dim(2)
