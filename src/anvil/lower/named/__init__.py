"""Ops with a scheduled kernel of their own, one file per family. Each file's ``LOWERINGS`` maps overloads to functions
``(lowering, node) -> View`` that add rows and return where the result lies (None for an op without one)."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

Lower = Callable[[Any, Any], Any]


@functools.cache
def table() -> dict[Any, Lower]:
    """Every op with a lowering of its own."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {op: function for module in modules for op, function in getattr(module, "LOWERINGS", {}).items()}
