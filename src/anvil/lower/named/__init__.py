"""Ops with a scheduled kernel of their own, one file per family. Each file's ``LOWERINGS`` maps overloads to functions
``(lowering, node) -> View`` that add rows and return where the result lies (None for an op without one).

An entry in a file's ``APPLIES``, ``(lowering, node) -> bool``, limits a lowering to some calls; the generic path takes
the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from anvil.discovery import offered

Lower = Callable[[Any, Any], Any]


@functools.cache
def table() -> dict[Any, Lower]:
    """Every op with a lowering of its own."""
    return {op: function for rows in offered(__name__, __path__, "LOWERINGS") for op, function in rows.items()}


@functools.cache
def conditions() -> dict[Any, Callable[[Any, Any], bool]]:
    """When the lowering of an op applies; always, if the op is not here."""
    return {op: applies for rows in offered(__name__, __path__, "APPLIES") for op, applies in rows.items()}
