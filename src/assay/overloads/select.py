"""Which overloads are checked on which targets, as parameters of a test."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from assay.explore import Profile
from assay.overloads.spec import Overload


def overload_params(overloads: Mapping[str, Overload], targets: Sequence[str], profile: Profile) -> list[Any]:
    """A parameter (overload, target) per test. In the quick profile every overload has one of the targets, in turn."""
    found: list[Any] = []
    for overload in overloads.values():
        for target in quick(overload, targets) if profile.name == "quick" else targets:
            name = re.sub(r"\W", "_", target)
            marks = [getattr(pytest.mark, mark) for mark in ("overload", overload.mark, name)]
            found.append(pytest.param((overload, target), id=f"{overload.name}-{name}", marks=marks))
    return found


def quick(overload: Overload, targets: Sequence[str]) -> list[str]:
    """One target, always the same for an overload, different ones for different overloads."""
    return [targets[zlib.crc32(overload.name.encode()) % len(targets)]] if targets else []
