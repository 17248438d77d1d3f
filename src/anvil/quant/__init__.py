"""Quantisation modes. Every module in this package that holds a ``MODE`` adds it."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from anvil.errors import InputError
from anvil.quant.base import PackedTensor, QuantMode

__all__ = ["PackedTensor", "QuantMode", "get", "modes"]


@functools.cache
def modes() -> dict[str, QuantMode]:
    """Every quantisation mode by name."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    found = [module.MODE for module in modules if hasattr(module, "MODE")]
    return {mode.name: mode for mode in sorted(found, key=lambda mode: mode.name)}


def get(name: str) -> QuantMode:
    """The mode called ``name``; raises :class:`InputError` listing what exists."""
    if name not in modes():
        raise InputError(f"choosing a quantisation mode: quant={name!r} is unknown; expected one of {list(modes())}")
    return modes()[name]
