"""assay's cache of things that can be made again: synthetic weights, tokenizers, compiled probes.

A cache that is full or cannot be written must not stop a run: the thing is made in a temporary folder instead, with one
warning.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path


def cache_root() -> Path:
    """$ASSAY_CACHE, or ``~/.cache/assay``."""
    return Path(os.environ.get("ASSAY_CACHE") or Path.home() / ".cache" / "assay")


def cached(relative: str, make: Callable[[Path], object]) -> Path:
    """The file or folder ``relative`` under the cache root; ``make(path)`` writes it when it is not there.

    It appears whole or not at all: it is made beside its place and renamed. When two processes make the same thing
    the first one's stands.
    """
    final = cache_root() / relative
    if final.exists():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=".making-", dir=final.parent))
    except OSError as error:
        return _made_elsewhere(relative, make, error)
    try:
        made = workplace / final.name
        make(made)
        try:
            made.rename(final)
        except OSError:
            if not final.exists():
                raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _made_elsewhere(relative, make, error)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return final


def _made_elsewhere(relative: str, make: Callable[[Path], object], error: OSError) -> Path:
    """The same in this process's own folder, with one warning."""
    _warn_once(str(cache_root()), str(error))
    fallback = _session_folder() / relative
    if not fallback.exists():
        fallback.parent.mkdir(parents=True, exist_ok=True)
        make(fallback)
    return fallback


@cache
def _session_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="assay-"))


@cache
def _warn_once(root: str, reason: str) -> None:
    warnings.warn(f"cache={root} cannot be written ({reason}); going on without it", stacklevel=3)
