"""The ops of the generic path, one file per family. Each file's ``OPS`` maps overloads to how they become steps of a
region; adding an op is adding an entry, or a file."""

from __future__ import annotations

import functools
from typing import Any

from anvil.discovery import offered
from anvil.lower.generic.call import Build


@functools.cache
def table() -> dict[Any, Build]:
    """Every op of the generic path."""
    return {op: build for ops in offered(__name__, __path__, "OPS") for op, build in ops.items()}
