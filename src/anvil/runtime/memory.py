"""Named blocks of memory and a loaded library in one executor, shared by all plans of a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from anvil.codegen import Library
from anvil.runtime.executor import Executor
from anvil.runtime.native import NativeExecutor


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of ``tensor`` in row-major order; copies only what is not dense already."""
    dense = tensor.detach().contiguous()
    if not dense.numel():
        return memoryview(b"")
    # A dimension of size 1 may keep any stride in a contiguous tensor; the view as bytes wants 1.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().data


_POOL = 64 << 20  # bytes of memory that constants share; a larger constant has a block of its own
_ALIGN = 64  # bytes of a cache line


class Memory:
    """Blocks are kept by key until they must grow, constants for good.

    A crash restarts the executor: constants are then uploaded again when next asked for, all other contents are lost.
    ``version`` changes whenever an address handed out before may have become invalid.
    """

    def __init__(self, executor: Executor, library: Library) -> None:
        self.executor = executor
        self.library = library
        self.in_process = isinstance(executor, NativeExecutor)
        self._handle = executor.load(library.data)
        self._functions: dict[str, int] = {}
        self._blocks: dict[str, tuple[int, int]] = {}  # key -> (address, bytes)
        self._constants: dict[str, tuple[int, int]] = {}
        self._ready: dict[str, np.ndarray] = {}  # constants that lie in this process, whatever becomes of the executor
        self._pool = (0, 0)  # what is left of the pool: [first, last) address
        self._generation = executor.generation
        self._moved = 0

    @property
    def version(self) -> tuple[int, int]:
        return self.executor.generation, self._moved

    def holds(self, blocks: Mapping[str, int]) -> bool:
        """Whether every block (key -> address) still lies where it did."""
        self._forget_lost()
        return all(self._blocks.get(key, (None,))[0] == address for key, address in blocks.items())

    def functions(self, kernels: list[str]) -> dict[str, int]:
        """Addresses of the kernels' packed entries."""
        for kernel in kernels:
            if kernel not in self._functions:
                self._functions[kernel] = self.executor.symbol(self._handle, self.library.symbols[kernel])
        return {kernel: self._functions[kernel] for kernel in kernels}

    def block(self, key: str, nbytes: int) -> int:
        """Address of the block called ``key``, of at least ``nbytes`` bytes; its contents are lost when it grows."""
        self._forget_lost()
        address, size = self._blocks.get(key, (0, -1))
        if size < nbytes:
            if size >= 0:
                self.executor.free(address)
                self._moved += 1
            address = self.executor.alloc(nbytes)
            self._blocks[key] = (address, nbytes)
        return address

    def hold(self, constants: Mapping[str, np.ndarray]) -> None:
        """Take constants that lie ready as bytes in this process, for :meth:`constant` to find.

        In this process kernels read them where they lie.
        """
        self._ready |= constants

    def constant(self, key: str, make: Callable[[], np.ndarray]) -> int:
        """Address of a read-only constant; ``make`` gives its bytes and is called when they are not there yet."""
        self._forget_lost()
        if key not in self._constants:
            ready = key in self._ready
            data = self._ready[key] if ready else make()
            if ready and self.in_process:
                self._constants[key] = (data.ctypes.data, data.nbytes)
                return self._constants[key][0]
            address = self._pooled(max(data.nbytes, 1)) if self.in_process else self.executor.alloc(data.nbytes)
            if data.nbytes:
                self.executor.write(address, data.data, readonly=not self.in_process)
            self._constants[key] = (address, data.nbytes)
        return self._constants[key][0]

    def _pooled(self, nbytes: int) -> int:
        """Memory for a constant in this process, next to the one before and on the same huge pages.

        A token reads every weight once: in mappings of their own, page walks would take a third of that time. They
        are not write-protected for the same reason, as that cuts huge pages into small ones.
        """
        first, last = self._pool
        if first + nbytes > last:
            first = self.executor.alloc(max(nbytes, _POOL))
            last = first + max(nbytes, _POOL)
            if nbytes >= _POOL:
                return first
        self._pool = (first + -(-nbytes // _ALIGN) * _ALIGN, last)
        return first

    def _forget_lost(self) -> None:
        """What lay in a process that crashed is gone."""
        if self._generation != self.executor.generation:
            self._generation = self.executor.generation
            self._blocks.clear()
            self._constants.clear()
            self._pool = (0, 0)

    def constant_bytes(self) -> int:
        """Bytes held in constants."""
        return sum(nbytes for _, nbytes in self._constants.values())

    def block_bytes(self, prefix: str) -> int:
        """Bytes of the blocks whose key begins with ``prefix``."""
        return sum(nbytes for key, (_, nbytes) in self._blocks.items() if key.startswith(prefix))
