"""The targets anvil generates code for. Every module in this package that holds ``TARGETS`` adds its own."""

from __future__ import annotations

import fnmatch
import functools

from anvil.discovery import offered
from anvil.errors import InputError
from anvil.targets.base import Target

__all__ = ["Target", "all_targets", "get", "quick_targets", "select"]


@functools.cache
def all_targets() -> tuple[Target, ...]:
    """Every known target, sorted by name."""
    found = [target for group in offered(__name__, __path__, "TARGETS") for target in group]
    return tuple(sorted(found, key=lambda target: target.name))


def quick_targets() -> tuple[Target, ...]:
    """The targets that are checked where none is named: one or two CPU models of the main ISAs."""
    return tuple(target for target in all_targets() if target.quick)


def get(name: str) -> Target:
    """The target called exactly ``name``; raises :class:`InputError` listing what exists."""
    for target in all_targets():
        if target.name == name:
            return target
    raise _unknown(name)


def select(pattern: str) -> tuple[Target, ...]:
    """Targets named by ``pattern``: a comma-separated list of target names, ISA names or globs; ``all`` is every one.

    An ISA's name stands for its quick targets, or for all of them if it has none; a target's name that is an ISA's too
    stands for itself.

    Raises :class:`InputError` when an item of the list matches nothing.
    """
    chosen: set[Target] = set()
    for item in pattern.split(","):
        matches = {target for target in all_targets() if _matches(target, item.strip())}
        if not matches:
            raise _unknown(item.strip())
        chosen |= matches
    return tuple(sorted(chosen, key=lambda target: target.name))


def _matches(target: Target, item: str) -> bool:
    return item == "all" or fnmatch.fnmatchcase(target.name, item) or (item == target.isa and _stands_for_isa(target))


def _stands_for_isa(target: Target) -> bool:
    return target.quick or not any(other.quick for other in all_targets() if other.isa == target.isa)


def _unknown(name: str) -> InputError:
    known = ", ".join(target.name for target in all_targets())
    return InputError(f"choosing a target: target={name!r} is unknown; expected one of: {known}, an ISA name or 'all'")
