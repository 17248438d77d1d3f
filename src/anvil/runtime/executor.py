"""The one interface to a place where kernels run: this process, a runner under an emulator, a board over ssh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

#: Fresh memory is filled with this byte: in every float format a NaN that no operation makes, in integers -1.
POISON = 0xFF


class Executor(Protocol):
    """A machine with memory. Addresses are the executor's own; only it may interpret them.

    Raises :class:`anvil.errors.KernelError` when a kernel crashes (signal, row) or exceeds ``timeout`` seconds; the
    executor then restarts itself at the next request. Memory handed out before is gone and ``generation`` has counted
    up; libraries and symbols stay valid, and freeing a lost address does nothing. In this process neither can be
    caught: it dies, or hangs.
    """

    description: str
    generation: int

    def load(self, library: bytes) -> int:
        """Load a shared object; return its handle. Raises :class:`anvil.errors.InputError` for another machine's."""
        ...

    def symbol(self, library: int, name: str) -> int:
        """Address of ``name``; raises :class:`anvil.errors.InputError` when the library has no such symbol."""
        ...

    def alloc(self, nbytes: int, *, align: int = 64, guard: bool = False) -> int:
        """Address of new memory, filled with :data:`POISON`.

        With ``guard`` it ends at an unreadable page (modulo ``align``: ask for the element size to have no gap).
        Without, an isolated executor lets it begin right after one. Using both catches accesses on either side.
        """
        ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, data: memoryview | bytes, *, readonly: bool = False) -> None:
        """Copy ``data`` to ``address``; with ``readonly`` kernels can then no longer write to that block."""
        ...

    def read(self, address: int, nbytes: int) -> bytes: ...

    def run(self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, timeout: float | None = None) -> None:
        """Call the rows of ``program`` (int64 [rows, 2]: packed-function address, first word's index) in order.

        ``words`` is the int64 argument block. Each row runs on ``threads`` threads with a barrier between rows;
        an executor without threads runs the parts of a row one after the other, which must give the same bits.
        """
        ...

    def run_and_read(
        self,
        program: np.ndarray,
        words: np.ndarray,
        reads: Sequence[tuple[int, int]],
        *,
        threads: int = 1,
        timeout: float | None = None,
    ) -> list[bytes]:
        """:meth:`run`, then :meth:`read` each (address, bytes) of ``reads``. On a remote executor all requests since
        the last answer (alloc, write, free) and these travel together: one round trip."""
        ...

    def prepare(
        self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, marks: np.ndarray | None = None
    ) -> Any:
        """A handle for running the same rows many times. ``program`` and ``words`` are kept, not copied: what the
        caller changes in ``words`` between runs is seen by the next :meth:`run_prepared`.

        ``marks`` (:func:`anvil.runtime.waves.marks`) say which rows need a barrier; an executor without threads has no
        use for them."""
        ...

    def run_prepared(self, prepared: Any, *, timeout: float | None = None) -> None:
        """:meth:`run` of a prepared program, with as little overhead as the executor can manage."""
        ...

    def close(self) -> None: ...
