"""Plug-ins are found, not listed: a new file in a package is a new ISA, mode, variant, kernel or family of ops."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def modules(package: str, path: Iterable[str]) -> dict[str, ModuleType]:
    """Every module in ``package``, whose ``__path__`` is ``path``, by its own name, sorted and imported."""
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def offered(package: str, path: Iterable[str], attribute: str) -> list[Any]:
    """What the modules of ``package`` hold under ``attribute``; one without it offers nothing."""
    return [getattr(module, attribute) for module in modules(package, path).values() if hasattr(module, attribute)]
