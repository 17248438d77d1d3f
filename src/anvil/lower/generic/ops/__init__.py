"""The ops of the generic path, one file per family. Each file's ``OPS`` maps overloads to how they become steps of a
region; adding an op is adding an entry, or a file."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from anvil.lower.generic.call import Build


@functools.cache
def table() -> dict[Any, Build]:
    """Every op of the generic path."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {op: build for module in modules for op, build in getattr(module, "OPS", {}).items()}
