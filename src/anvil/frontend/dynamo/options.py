"""What ``torch.compile(..., options={...})`` may say to anvil."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from anvil.errors import InputError


@dataclass(frozen=True)
class Options:
    """``fallback`` runs a graph with an uncovered operation in eager PyTorch, with a warning, instead of failing."""

    target: str = "x86_64-avx2"
    quant: str = "fp32"
    attention: str = "flash"
    threads: int = 1
    fallback: bool = False


def parse(options: Mapping[str, Any] | None) -> Options:
    """Raises InputError for an unknown option or a value of another type than its default's."""
    known = {field.name: type(field.default) for field in fields(Options)}
    for name, value in (options or {}).items():
        if name not in known:
            raise InputError(f"torch.compile with backend anvil: option {name!r}, expected one of {', '.join(known)}")
        if type(value) is not known[name]:
            raise InputError(
                f"torch.compile with backend anvil: option {name}={value!r}, expected a {known[name].__name__}"
            )
    return Options(**(options or {}))
