"""Compilation without the pauses of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no cycles within the block: with the graphs of a model alive a full pass takes half a second, and a
    compilation would make several. What it leaves is collected afterwards, as always."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
