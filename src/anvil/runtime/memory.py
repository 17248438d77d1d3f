"""Named blocks of memory and a loaded library in one executor, shared by all plans of a compiled program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from anvil.codegen import Library
from anvil.errors import KernelError
from anvil.runtime.executor import Executor
from anvil.runtime.native import NativeExecutor


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of ``tensor`` in row-major order; copies only what is not dense already."""
    dense = tensor.detach().contiguous().reshape(-1)
    return memoryview(dense.view(torch.uint8).numpy()) if dense.numel() else memoryview(b"")


class Memory:
    """Blocks are kept by key until they must grow, constants for good.

    When the executor has been restarted by a crash, call :meth:`forget`: the library is loaded and constants are
    uploaded again when next asked for; all other contents are lost. ``version`` changes whenever an address handed
    out before may have become invalid.
    """

    def __init__(self, executor: Executor, library: Library) -> None:
        self.executor = executor
        self.library = library
        self.in_process = isinstance(executor, NativeExecutor)
        self.version = 0
        self._handle: int | None = None
        self._functions: dict[str, int] = {}
        self._blocks: dict[str, tuple[int, int]] = {}  # key -> (address, bytes)
        self._constants: dict[str, tuple[int, int]] = {}

    def functions(self, kernels: list[str]) -> dict[str, int]:
        """Addresses of the kernels' packed entries, loading the library when it is not loaded."""
        if self._handle is None:
            self._handle = self.executor.load(self.library.data)
        for kernel in kernels:
            if kernel not in self._functions:
                self._functions[kernel] = self.executor.symbol(self._handle, self.library.symbols[kernel])
        return {kernel: self._functions[kernel] for kernel in kernels}

    def block(self, key: str, nbytes: int) -> int:
        """Address of the block called ``key``, of at least ``nbytes`` bytes; its contents are lost when it grows."""
        address, size = self._blocks.get(key, (0, -1))
        if size < nbytes:
            if size >= 0:
                self.executor.free(address)
                self.version += 1
            address = self.executor.alloc(nbytes)
            self._blocks[key] = (address, nbytes)
        return address

    def constant(self, key: str, make: Callable[[], torch.Tensor]) -> int:
        """Address of a read-only constant; ``make`` is called when it is not there yet."""
        if key not in self._constants:
            data = as_bytes(make())
            address = self.executor.alloc(data.nbytes)
            if data.nbytes:
                self.executor.write(address, data, readonly=True)
            self._constants[key] = (address, data.nbytes)
        return self._constants[key][0]

    def forget(self) -> None:
        """The executor was restarted: no address is valid any more."""
        self._handle = None
        self._functions.clear()
        self._blocks.clear()
        self._constants.clear()
        self.version += 1

    def constant_bytes(self) -> int:
        """Bytes held in constants."""
        return sum(nbytes for _, nbytes in self._constants.values())

    def block_bytes(self, key: str) -> int:
        """Bytes of one block, 0 if there is none."""
        return self._blocks.get(key, (0, 0))[1]

    def read(self, address: int, nbytes: int) -> np.ndarray:
        """A copy of ``nbytes`` bytes as uint8."""
        raw = self.executor.read(address, nbytes) if nbytes else b""
        return np.frombuffer(bytearray(raw), np.uint8)

    def run(self, program: np.ndarray, words: np.ndarray, *, threads: int, timeout: float | None = None) -> None:
        """Run rows; a crash makes this memory forget everything before the error goes on."""
        try:
            self.executor.run(program, words, threads=threads, timeout=timeout)
        except KernelError:
            self.forget()
            raise
