"""Content-addressed cache of compiled artifacts, shared by every process of a user.

An entry is named by the hash of everything that determines it and carries a checksum of its content, so a truncated
or overwritten entry is seen and made again. Writes are atomic renames; two writers of one key write the same bytes.
A cache that cannot be written (read-only, disk full) costs time, never correctness: one warning in the log, then
compilation goes on and keeps its results in memory.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)
_unwritten: dict[str, bytes] = {}  # made by this process, but the cache could not take them

_DIGEST = 32  # bytes of SHA-256 before an entry's content


def directory() -> Path:
    """``$ANVIL_CACHE``, or ``~/.cache/anvil``."""
    configured = os.environ.get("ANVIL_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "anvil"


def key(*parts: str | bytes) -> str:
    """Hex SHA-256 over ``parts``, each preceded by its length so that no two lists collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def look_up(name: str) -> bytes | None:
    """The entry called ``name``; None when it is absent or damaged."""
    return _unwritten.get(name) or _read(directory() / name[:2] / name)


def get_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """The entry called ``name``, made and stored first when it is absent or damaged."""
    found = look_up(name)
    if found is None:
        found = make()
        if not _write(directory() / name[:2] / name, found):
            _unwritten[name] = found
    return found


def _read(path: Path) -> bytes | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    content = raw[_DIGEST:]
    return content if hashlib.sha256(content).digest() == raw[:_DIGEST] else None


def _write(path: Path, content: bytes) -> bool:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(temporary, path)
        return True
    except OSError as error:
        _warn_once(str(directory()), error.strerror or str(error))
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False


@functools.cache
def _warn_once(where: str, why: str) -> None:
    _log.warning(
        "compile cache %s cannot be written (%s); compiling without it. Set ANVIL_CACHE to a writable directory.",
        where,
        why,
    )
