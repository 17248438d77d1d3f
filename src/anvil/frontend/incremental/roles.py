"""What the dimensions of a value stand for: batch rows, tokens, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Axis(Enum):
    """One dimension. ``BOTH`` is batch and tokens flattened into one, in this order."""

    PLAIN = "plain"
    BATCH = "batch"
    TOKEN = "token"
    BOTH = "batch and token"


@dataclass(frozen=True)
class Role:
    """A value of the whole-sequence program: ``axes`` name its dimensions.

    A ``lifted`` value depends on positions but not on the batch. Positions differ between rows of the incremental
    program, so there the value has one more dimension, the batch, in front.
    """

    axes: tuple[Axis, ...]
    lifted: bool = False

    def find(self, axis: Axis) -> int | None:
        return self.axes.index(axis) if axis in self.axes else None

    @property
    def plain(self) -> bool:
        """Whether the value is the same for every row and token."""
        return not self.lifted and all(axis is Axis.PLAIN for axis in self.axes)

    def with_axes(self, axes: list[Axis] | tuple[Axis, ...]) -> Role:
        return Role(tuple(axes), self.lifted)


def plain(rank: int) -> Role:
    return Role((Axis.PLAIN,) * rank)
