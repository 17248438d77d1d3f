"""Ops with a scheduled kernel of their own, one file per family. Each file's ``LOWERINGS`` maps overloads to functions
``(lowering, node) -> View`` that add rows and return where the result lies (None for an op without one).

An entry in a file's ``APPLIES``, ``(lowering, node) -> bool``, limits a lowering to some calls; the generic path takes
the others."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

Lower = Callable[[Any, Any], Any]


@functools.cache
def table() -> dict[Any, Lower]:
    """Every op with a lowering of its own."""
    return {op: function for module in _modules() for op, function in getattr(module, "LOWERINGS", {}).items()}


@functools.cache
def conditions() -> dict[Any, Callable[[Any, Any], bool]]:
    """When the lowering of an op applies; always, if the op is not here."""
    return {op: applies for module in _modules() for op, applies in getattr(module, "APPLIES", {}).items()}


@functools.cache
def _modules() -> list[ModuleType]:
    return [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
