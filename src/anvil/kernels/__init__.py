"""Scheduled kernels, one file each: a module with ``build(target, ...) -> Kernel`` is found by its name."""

from __future__ import annotations

import functools
from types import ModuleType

from anvil.discovery import modules
from anvil.errors import UnsupportedError

__all__ = ["get", "names"]


@functools.cache
def _modules() -> dict[str, ModuleType]:
    return {name: module for name, module in modules(__name__, __path__).items() if hasattr(module, "build")}


def names() -> list[str]:
    """Names of every scheduled kernel."""
    return list(_modules())


def get(name: str) -> ModuleType:
    """The module of kernel ``name``; its ``build`` makes the kernel. Raises :class:`UnsupportedError`."""
    if name not in _modules():
        raise UnsupportedError(f"looking up a kernel: name={name!r} is unknown; expected one of {names()}")
    return _modules()[name]
