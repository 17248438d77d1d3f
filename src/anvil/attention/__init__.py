"""Attention variants. Every module in this package that holds a ``VARIANT`` adds it."""

from __future__ import annotations

import functools

from anvil.attention.base import AttentionVariant, Visibility
from anvil.discovery import offered
from anvil.errors import InputError

__all__ = ["AttentionVariant", "Visibility", "families", "get", "variants"]


@functools.cache
def variants() -> dict[str, AttentionVariant]:
    """Every attention variant by name."""
    found = offered(__name__, __path__, "VARIANT")
    return {variant.name: variant for variant in sorted(found, key=lambda variant: variant.name)}


def families() -> dict[str, tuple[str, ...]]:
    """Names of variants by what they read: ``attention`` for whole tensors, and the kinds of caches."""
    found: dict[str, tuple[str, ...]] = {}
    for variant in variants().values():
        found[variant.family] = (*found.get(variant.family, ()), variant.name)
    return found


def get(name: str) -> AttentionVariant:
    """The variant called ``name``; raises :class:`InputError` listing what exists."""
    if name not in variants():
        raise InputError(f"choosing an attention variant: name={name!r} is unknown; expected one of {list(variants())}")
    return variants()[name]
