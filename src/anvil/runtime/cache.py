"""How many tokens the key/value cache holds for each sequence of a batch, and how many it may hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anvil.errors import InputError


class CacheState:
    """Fill level of a cache of ``capacity`` slots for each of ``batch`` sequences.

    ``past`` is int64 [batch], the number of tokens held; the array stays the same object and is changed in place.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        self.capacity = capacity
        self.past = np.zeros(batch, np.int64)

    def reset(self) -> None:
        """Forget every sequence. Nothing is cleared: no token ever looks past its own position."""
        self.past[:] = 0

    def check_room(self, tokens: Sequence[int]) -> None:
        """Raises :class:`InputError` unless every sequence can take its number of new tokens."""
        for row, new in enumerate(tokens):
            held = int(self.past[row])
            if held + new > self.capacity:
                raise InputError(
                    f"feeding tokens={new} to sequence {row}: the cache holds {held} of context={self.capacity}; "
                    "shorten the prompt, ask for fewer tokens, or compile with a larger context="
                )
