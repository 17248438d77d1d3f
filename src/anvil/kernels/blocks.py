"""Quantised weights as a stream of bytes: what lies in a block, where, and how a kernel turns it into numbers.

A weight [N, K] is cut into panels of ``width`` outputs (:mod:`anvil.kernels.panel`) and a panel into blocks of
``block`` inputs. One blob holds it all, i8 [P, bytes]: per panel a head (what belongs to an output as a whole), then
block after block; in a block field after field (codes, scales, ...); in a field row after row, a row having one
element of each output of the panel. So a matrix kernel reads one stream, front to back, whole vectors at a time, and
never adds across lanes. Elements of 2 and 4 bits lie in 32-bit words, one word per output, the first k lowest; larger
ones may lie in words too, for instructions that multiply several inputs of an output at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anvil.kernels.bits import reinterpret
from anvil.kernels.dsl import Ref, Val, cast, index
from anvil.kernels.panel import Panel
from anvil.targets.base import Target


@dataclass(frozen=True)
class Field:
    """``count`` elements of ``bits`` bits (2, 4, 8, 16 or 32) that each output has in each block.

    ``word`` packs them into words of that many bits; elements of less than 8 bits always lie in words of 32.
    """

    name: str
    bits: int
    count: int = 1
    word: int = 0

    @property
    def unit(self) -> int:
        """Bits of what is loaded for one output: an element, or a word of several."""
        return self.word or (32 if self.bits < 8 else self.bits)

    @property
    def rows(self) -> int:
        return self.count * self.bits // self.unit

    def nbytes(self, width: int) -> int:
        """Bytes of the field for ``width`` outputs."""
        return self.rows * width * self.unit // 8


@dataclass(frozen=True)
class Swift:
    """See ``swift`` of :class:`BlockFormat`."""

    codes: Callable[[At, Val], Any]
    value: Callable[[Any, int, Any], Val]
    scale: Callable[[Any], Val]


SWIFT_LIMIT = 2.0**64
"""Values of at most 32 bits times this, summed over a group, stay far below the largest f32, 2^128."""


@dataclass(frozen=True)
class BlockFormat:
    """How blocks look and what their numbers mean. The functions emit code for one vector of outputs.

    ``group`` inputs share parameters, ``step`` inputs are decoded from one load of codes; ``step`` divides ``group``
    and ``group`` divides ``block``. ``parameters(at)`` loads what a group shares, ``codes(at, step)`` the codes of one
    step, and ``value(codes, k, parameters)`` gives the f32 number of the ``k``-th input of the step.

    With ``scale`` the values are integers: sums over a group are made of them and multiplied once by
    ``scale(parameters)``. Without, the values are the weights themselves.

    ``swift`` is a cheaper set of the same functions for the matrix-vector product: the values times a power of
    two, which ``scale`` takes back. The bits are the same as long as no product overflows, so it serves inputs below
    ``SWIFT_LIMIT`` in magnitude only.
    """

    name: str
    block: int
    group: int
    step: int
    fields: tuple[Field, ...]
    parameters: Callable[[At], Any]
    codes: Callable[[At, Val], Any]
    value: Callable[[Any, int, Any], Val]
    scale: Callable[[Any], Val] | None = None
    swift: Swift | None = None
    head: tuple[Field, ...] = ()

    def blocks(self, inputs: int) -> int:
        """Blocks that ``inputs`` inputs take; the last may be padded."""
        return -(-inputs // self.block)

    def head_bytes(self, width: int) -> int:
        return sum(field.nbytes(width) for field in self.head)

    def block_bytes(self, width: int) -> int:
        return sum(field.nbytes(width) for field in self.fields)

    def panel_bytes(self, inputs: int, width: int) -> int:
        return self.head_bytes(width) + self.blocks(inputs) * self.block_bytes(width)

    def layout(self, panel: Panel) -> str:
        """Everything that shapes the bytes, as one name: ``q4_0.panel16.k32.codes4x32.scale16x1``."""

        def listed(fields: tuple[Field, ...]) -> list[str]:
            words = [f"w{field.word}" if field.word else "" for field in fields]
            return [f"{f.name}{f.bits}x{f.count}{word}" for f, word in zip(fields, words, strict=True)]

        head = [f"head({','.join(listed(self.head))})"] if self.head else []
        return ".".join([self.name, panel.layout, f"k{self.block}", *head, *listed(self.fields)])

    def place(self, name: str, width: int) -> tuple[Field, int, bool]:
        """A field, its offset in bytes from the start of the block or head, and whether it is in the head."""
        for fields in (self.head, self.fields):
            offset = 0
            for field in fields:
                if field.name == name:
                    return field, offset, fields is self.head
                offset += field.nbytes(width)
        raise KeyError(f"format {self.name}: no field {name!r}")


@dataclass(frozen=True)
class At:
    """A place in a blob: the outputs of one vector of a panel, the inputs of one group."""

    format: BlockFormat
    blob: Ref
    panel: Panel
    target: Target
    which: Val  # panel number
    group: Val
    vector: int

    @property
    def sub(self) -> Val:
        """Number of the group in its block."""
        return self.group % (self.format.block // self.format.group)

    def row(self, name: str, row: Val | int = 0) -> Val:
        """One row of a field: an integer vector, one element (or word) per output."""
        field, _, _ = self.format.place(name, self.panel.width)
        loaded = self.bytes_of(name, row)
        return loaded if field.unit == 8 else reinterpret(loaded, f"i{field.unit}")

    def bytes_of(self, name: str, row: Val | int = 0) -> Val:
        """One row of a field as the bytes that it lies in."""
        width, lanes = self.panel.width, self.panel.lanes
        field, offset, in_head = self.format.place(name, width)
        size = field.unit // 8
        start = index(offset + self.vector * lanes * size) + index(row) * (width * size)
        if not in_head:
            block = self.group // (self.format.block // self.format.group)
            start = start + block * self.format.block_bytes(width) + self.format.head_bytes(width)
        return self.blob.load(self.which, start, lanes=lanes * size)


def no_parameters(at: At) -> None:
    """Formats whose codes are the weights."""


def small_float(value: Val) -> Val:
    """f32 of integer lanes; exact up to 24 bits."""
    return cast(value, "f32")
