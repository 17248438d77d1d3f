"""One safetensors file, mapped into memory: its tensors are windows on it, and nothing is copied.

The format: 8 bytes with the header's length, the header as JSON (name -> dtype, shape, first and last byte), the data.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from anvil.errors import WeightsError
from anvil.runtime.original import Original

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: where its bytes begin, from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_header(path: Path, what: str) -> dict[str, Entry]:
    """The tensors a file promises, all of them whole. Raises :class:`WeightsError` where they are not."""
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length < nbytes else {}
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max(entry["data_offsets"][1] for entry in entries.values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # broken JSON, or a header of something else
            raise WeightsError(f"loading {what}: shard={path.name} is not a safetensors file") from error
    want = 8 + length + end
    if nbytes < want:
        raise WeightsError(
            f"loading {what}: shard={path.name} bytes={nbytes}, expected {want}; the file is truncated, "
            "download it again"
        )
    return {
        name: Entry(entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in entries.items()
    }


class MappedFile:
    """The tensors of one file as :class:`Original`. What was read is given back to the system at the next read, so
    that a file larger than memory can be gone through."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._read: tuple[int, int] | None = None

    def originals(self) -> dict[str, Original]:
        return {name: Original(entry.shape, self._rows(entry)) for name, entry in self._entries.items()}

    def _rows(self, entry: Entry):
        dtype = DTYPES[entry.dtype]
        inner = math.prod(entry.shape[1:]) * dtype.itemsize

        def rows(first: int, last: int) -> torch.Tensor:
            shape = (last - first, *entry.shape[1:]) if entry.shape else ()
            self._give_back()
            begin = entry.offset + first * inner
            nbytes = math.prod(shape) * dtype.itemsize
            self._read = (begin, nbytes)
            if not nbytes:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(self._map, dtype=dtype, count=math.prod(shape), offset=begin).reshape(shape)

        return rows

    def _give_back(self) -> None:
        if self._read is not None:
            begin, nbytes = self._read
            start = begin // mmap.PAGESIZE * mmap.PAGESIZE
            if nbytes:
                self._map.madvise(mmap.MADV_DONTNEED, start, begin + nbytes - start)
            self._read = None
