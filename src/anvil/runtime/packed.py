"""Packed weights in a file: what a model's weights look like in memory, so that the next start only reads them.

The file: the data, in which every weight begins at a multiple of 64 bytes; a footer as JSON; 8 bytes with the
footer's length. The footer says what became of each weight, and has sums of the data that are checked when it is read.
Weights that do not fit in memory are mapped instead, and read by the page.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import psutil

from anvil.codegen import cache
from anvil.quant import WeightRow

_ALIGN = 64  # bytes of a cache line
_HUGE = 2 << 20  # bytes of a huge page
_PIECE = 8 << 20  # bytes read at a time
_NEW = ".new-"
_FRESH = 60  # seconds: a file as young as this may be one whose writer has not locked it yet
_MOST = 48 << 30  # bytes that all packed files together may take; the oldest go first
_SHARE_OF_MEMORY = 0.8  # of what is free: weights that need more are mapped


@dataclass(frozen=True)
class Layout:
    """Where each weight lies: ``places`` are (offset, bytes) by key, ``nbytes`` is the end of the last."""

    places: Mapping[str, tuple[int, int]]
    nbytes: int

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Layout:
        """One after the other, for weights of ``sizes`` bytes."""
        places, end = {}, 0
        for key, nbytes in sizes.items():
            places[key] = (end, nbytes)
            end += -(-nbytes // _ALIGN) * _ALIGN
        return cls(places, end)

    def part(self, data: np.ndarray, key: str) -> np.ndarray:
        """The bytes of one weight within ``data``."""
        offset, nbytes = self.places[key]
        return data[offset : offset + nbytes]


def fits_in_memory(nbytes: int) -> bool:
    """Whether this machine can hold that much beside what it holds now."""
    return nbytes <= _SHARE_OF_MEMORY * psutil.virtual_memory().available


def anonymous(nbytes: int) -> np.ndarray:
    """Fresh memory on huge pages: a token reads every weight once, and page walks would take a third of that time."""
    block = mmap.mmap(-1, nbytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets small pages
    start = -np.frombuffer(block, np.uint8).ctypes.data % _HUGE
    if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)[start : start + nbytes]


class PackedFile:
    """The file of one model for one target and mode. ``name`` is a hash of all that its contents depend on."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.path = cache.directory() / "packed" / name
        self.layout = layout

    def load(self) -> tuple[np.ndarray, list[WeightRow]] | None:
        """All weights, and what became of each; None when there is no file, or it is not what was written."""
        try:
            with self.path.open("rb") as file:
                footer = _read_footer(file, self.layout.nbytes)
                os.utime(self.path)
                rows = [WeightRow(**{**row, "shape": tuple(row["shape"])}) for row in footer["rows"]]
                if not fits_in_memory(self.layout.nbytes):
                    return _mapped(file, self.layout.nbytes, mmap.ACCESS_READ), rows
                data = anonymous(self.layout.nbytes)
                _read_into(data, file.fileno())
                return (data, rows) if _sums(data) == footer["sums"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, data: np.ndarray, rows: Sequence[WeightRow]) -> bool:
        """Write the file, whole or not at all; False where it could not be written."""
        try:
            with self._temporary() as temporary:
                if temporary is not None:
                    with temporary.open("wb") as file:
                        file.write(data.data)
                    self._finish(temporary, rows, _sums(data))
                return temporary is not None
        except OSError:
            return False

    def fill(self, write: Callable[[np.ndarray], list[WeightRow]]) -> tuple[np.ndarray, list[WeightRow]] | None:
        """Make the file where it lies, for weights that do not fit in memory; None where the disk has no room.

        ``write`` gets the data to fill and says what became of each weight.
        """
        with self._temporary() as temporary:
            if temporary is None:
                return None
            with temporary.open("r+b") as file:
                file.truncate(self.layout.nbytes)
                data = _mapped(file, self.layout.nbytes, mmap.ACCESS_WRITE)
                rows = write(data)
            self._finish(temporary, rows, [])
            return data, rows

    @contextmanager
    def _temporary(self) -> Iterator[Path | None]:
        """A file to write to, gone afterwards; None if the weights would take more than half of what is free."""
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        _make_room(folder, self.layout.nbytes)
        if self.layout.nbytes > shutil.disk_usage(folder).free / 2:
            yield None
            return
        handle, name = tempfile.mkstemp(dir=folder, prefix=_NEW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # says that somebody writes it, for as long as this process lives
            yield Path(name)
        finally:
            os.close(handle)
            Path(name).unlink(missing_ok=True)

    def _finish(self, temporary: Path, rows: Sequence[WeightRow], sums: list[int]) -> None:
        footer = json.dumps({"rows": [asdict(row) for row in rows], "sums": sums}).encode()
        with temporary.open("ab") as file:
            file.write(footer + len(footer).to_bytes(8, "little"))
        os.replace(temporary, self.path)


def _read_footer(file: BinaryIO, nbytes: int) -> dict[str, Any]:
    """What stands behind the data. Raises ``ValueError`` for a file of another size."""
    file.seek(-8, os.SEEK_END)
    length = int.from_bytes(file.read(8), "little")
    if file.tell() != nbytes + length + 8:
        raise ValueError("not the file that was written")
    file.seek(nbytes)
    return json.loads(file.read(length))


def _mapped(file: BinaryIO, nbytes: int, access: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(file.fileno(), nbytes, access=access), np.uint8)


def _read_into(data: np.ndarray, handle: int) -> None:
    """Read the first bytes of a file, on two threads. Raises ``OSError`` where it ends early."""

    def read(first: int) -> None:
        part = data[first : first + _PIECE]
        if os.preadv(handle, [part.data], first) != len(part):
            raise OSError("the file ends early")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(0, len(data), _PIECE)))


def _sums(data: np.ndarray) -> list[int]:
    """The sum of each piece's 64-bit words."""
    words = data.view(np.uint64)
    step = _PIECE // 8
    return [int(words[first : first + step].sum(dtype=np.uint64)) for first in range(0, len(words), step)]


def _sweep(folder: Path) -> None:
    """Remove what writers left behind that were killed: gigabytes each."""
    for left in folder.glob(f"{_NEW}*"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - left.stat().st_mtime > _FRESH:
                left.unlink()


def _make_room(folder: Path, nbytes: int) -> None:
    """Remove the files that were not used for longest, so that all together take no more than they may."""
    files = sorted(folder.glob("[!.]*"), key=lambda file: file.stat().st_mtime)
    held = sum(file.stat().st_size for file in files)
    while files and held + nbytes > _MOST:
        held -= files[0].stat().st_size
        files.pop(0).unlink(missing_ok=True)
