"""The one interface to a place where kernels run: this process, a runner under an emulator, a board over ssh."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

#: Fresh memory is filled with this byte: a NaN in every float format, with a payload no operation makes; -1 in integers.
POISON = 0xFF


class Executor(Protocol):
    """A machine with memory. Addresses are the executor's own; only it may interpret them.

    Raises :class:`anvil.errors.KernelError` when a kernel crashes (signal, row) or exceeds ``timeout`` seconds;
    the executor then restarts itself and every address handed out before is invalid.
    """

    def load(self, library: bytes) -> int:
        """Load a shared object; return its handle."""
        ...

    def symbol(self, library: int, name: str) -> int:
        """Address of ``name``."""
        ...

    def alloc(self, nbytes: int, *, align: int = 64, guard: bool = False) -> int:
        """Address of new memory, filled with poison. With ``guard`` it ends at an unreadable page (modulo align)
        and begins after one."""
        ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, data: memoryview | bytes, *, readonly: bool = False) -> None: ...

    def read(self, address: int, nbytes: int) -> bytes: ...

    def run(self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, timeout: float | None = None) -> None:
        """Call the rows of ``program`` (int64 [rows, 2]: packed-function address, first word's index) in order.

        ``words`` is the int64 argument block. Each row runs on ``threads`` threads with a barrier between rows;
        an executor without threads runs the parts of a row one after the other, which must give the same bits.
        """
        ...

    def prepare(self, program: np.ndarray, words: np.ndarray, *, threads: int = 1) -> Any:
        """A handle for running the same rows many times. ``program`` and ``words`` are kept, not copied: what the
        caller changes in ``words`` between runs is seen by the next :meth:`run_prepared`."""
        ...

    def run_prepared(self, prepared: Any, *, timeout: float | None = None) -> None:
        """:meth:`run` of a prepared program, with as little overhead as the executor can manage."""
        ...

    def close(self) -> None: ...
