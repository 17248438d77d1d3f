"""The loops of a region while it grows: they are found to be the same one by one."""

from __future__ import annotations

from anvil.lower.sizes import same
from anvil.runtime.plan import Size


class Axes:
    """Loops by number, in sets of numbers that stand for one loop (union-find)."""

    def __init__(self) -> None:
        self._sizes: list[Size] = []
        self._parent: list[int] = []

    def new(self, size: Size) -> int:
        """A loop of ``size`` turns."""
        self._sizes.append(size)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def find(self, axis: int) -> int:
        """The number that stands for the set of ``axis``."""
        while self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    def size(self, axis: int) -> Size:
        return self._sizes[self.find(axis)]

    def join(self, a: int, b: int) -> None:
        """From now on ``a`` and ``b`` are one loop; their sizes must be the same."""
        a, b = sorted((self.find(a), self.find(b)))
        assert same(self._sizes[a], self._sizes[b]), f"loops of {self._sizes[a]} and {self._sizes[b]} turns"
        self._parent[b] = a
