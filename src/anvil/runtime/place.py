"""Puts a model's weights where kernels read them: out of the packed file, or packed now and kept for the next start."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from anvil.errors import InputError
from anvil.quant import WeightRow
from anvil.runtime.executable import Executable
from anvil.runtime.memory import Memory
from anvil.runtime.packed import Layout, PackedFile, anonymous, fits_in_memory

_log = logging.getLogger(__name__)
_LONG = 1 << 30  # bytes of weights whose packing takes so long that it is told about
_SMALLEST = 8 << 20  # bytes of weights that are worth a file


def place_weights(
    executables: Sequence[Executable], memory: Memory, packed: Callable[[], list[WeightRow]], name: str | None
) -> list[WeightRow]:
    """Every constant of all executables; ``name`` names the packed file, None for none. What became of each weight:
    as the file says, or as ``packed`` does once they are packed.

    Raises :class:`InputError` where the weights fit neither in memory nor on disk.
    """
    sizes: dict[str, int] = {}
    owner: dict[str, Executable] = {}
    for executable in executables:
        for key, nbytes in executable.constant_sizes().items():
            sizes[key] = nbytes
            owner.setdefault(key, executable)
    layout = Layout.of(sizes)
    file = PackedFile(name, layout) if name is not None and layout.nbytes >= _SMALLEST else None

    def pack_all(data: np.ndarray) -> list[WeightRow]:
        tenths = 0
        for key, (offset, _) in layout.places.items():
            if layout.nbytes >= _LONG and 10 * offset >= tenths * layout.nbytes:
                _log.info("packing %.2f GB of weights: %d %%", layout.nbytes / 1e9, 100 * offset // layout.nbytes)
                tenths = 10 * offset // layout.nbytes + 1
            owner[key].fill_constant(key, layout.part(data, key))
        return packed()

    data, rows = _found(file, layout, pack_all)
    memory.hold({key: layout.part(data, key) for key in layout.places})
    for executable in executables:
        executable.upload()
    return rows


def _found(
    file: PackedFile | None, layout: Layout, pack_all: Callable[[np.ndarray], list[WeightRow]]
) -> tuple[np.ndarray, list[WeightRow]]:
    held = file.load() if file is not None else None
    if held is not None:
        return held
    if fits_in_memory(layout.nbytes):
        data = anonymous(layout.nbytes)
        rows = pack_all(data)
        if file is not None:
            file.save(data, rows)
        return data, rows
    held = file.fill(pack_all) if file is not None else None
    if held is None:
        raise InputError(
            f"placing the weights of a model: they take {math.ceil(layout.nbytes / 1e9)} GB, more than is free in "
            "memory, and the cache's disk has no room to map them from; free some, choose a smaller quantisation "
            "mode, or set ANVIL_CACHE to a larger disk"
        )
    return held
