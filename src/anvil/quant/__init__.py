"""Quantisation modes. Every module in this package that holds a ``MODE`` adds it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from anvil.discovery import offered
from anvil.errors import InputError
from anvil.quant.base import PackedTensor, Quantised, QuantMode
from anvil.quant.choice import AS_STORED, Choice, Stored, WeightRow, checked

__all__ = [
    "AS_STORED",
    "Choice",
    "PackedTensor",
    "QuantMode",
    "Quantised",
    "Stored",
    "WeightRow",
    "choose",
    "get",
    "modes",
]


@functools.cache
def modes() -> dict[str, QuantMode]:
    """Every quantisation mode by name."""
    found = offered(__name__, __path__, "MODE")
    return {mode.name: mode for mode in sorted(found, key=lambda mode: mode.name)}


def get(name: str) -> QuantMode:
    """The mode called ``name``; raises :class:`InputError` listing what exists."""
    if name not in modes():
        raise InputError(f"choosing a quantisation mode: quant={name!r} is unknown; expected one of {list(modes())}")
    return modes()[name]


def choose(name: str, stored: Mapping[str, Stored] | None = None) -> Choice:
    """The modes of a model's matrices for ``quant=name``; raises :class:`InputError` as :func:`get` does."""
    return checked(name, modes(), stored or {})
