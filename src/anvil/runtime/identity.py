"""What makes two compiled models the same code: equal identity, equal instructions in equal order."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from anvil.runtime.plan import Plan


def identity(library_key: str, plans: Iterable[Plan]) -> str:
    """Sixteen hexadecimal digits over the machine code, the rows of the plans, and the sources of this runtime."""
    rows = "\n".join(repr(row) for plan in plans for row in plan.rows)
    return sha256(f"{library_key}\n{rows}\n{_runtime()}".encode()).hexdigest()[:16]


@functools.cache
def _runtime() -> str:
    """Digest of the sources of this package: a token loop is also its Python and C."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.rglob("*")):
        if file.suffix in (".py", ".c", ".h"):
            digest.update(file.read_bytes())
    return digest.hexdigest()
