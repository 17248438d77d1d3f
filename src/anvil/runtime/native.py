"""Kernels in this process: the executor that speed is measured on. A kernel that crashes takes the process with it;
tests of kernels that may be wrong use the isolated executor instead."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anvil.codegen import tools
from anvil.errors import InputError
from anvil.runtime import elf
from anvil.runtime.executor import POISON

_HUGE = 2 << 20  # bytes of a transparent huge page; larger blocks are aligned to it and ask for them
_PAGE = mmap.PAGESIZE
_PROT_NONE, _MADV_HUGEPAGE = 0, 14
_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    for name in ("munmap", "mprotect", "madvise"):
        getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * (name != "munmap")
    return libc


@functools.cache
def _team_library() -> ctypes.CDLL:
    """The thread team (native_src/team.c), compiled for this machine and loaded once."""
    library = _dlopen(tools.compile_c("team.c", os.uname().machine, *tools.SHARED), "anvil-team")
    address, count = ctypes.c_void_p, ctypes.c_int64
    library.team_bytes.restype = library.team_max_threads.restype = count
    library.team_run.argtypes = [address, address, count, address, address, count]
    library.team_work.argtypes = [address, count]
    library.team_stop.argtypes = [address, count]
    for function in (library.team_run, library.team_work, library.team_stop):
        function.restype = None
    return library


def _dlopen(library: bytes, name: str) -> ctypes.CDLL:
    """Load a shared object from memory. Its descriptor stays open: the loader takes equal paths for equal files, so
    the number in the path must not be used again."""
    handle = os.memfd_create(name)
    with os.fdopen(handle, "wb", closefd=False) as file:
        file.write(library)
    return ctypes.CDLL(f"/proc/self/fd/{handle}")


@dataclass(frozen=True)
class Prepared:
    """Arguments of ``team_run`` as C values, with the arrays that own the memory they point to."""

    arguments: tuple[ctypes.c_void_p | ctypes.c_int64, ...]
    arrays: tuple[np.ndarray | None, ...]


@dataclass
class _Block:
    """Memory handed out: ``usable`` bytes from page boundary ``first``, within a mapping."""

    mapping: int
    mapped: int
    first: int
    usable: int
    readonly: bool = False


class NativeExecutor:
    """Implements :class:`anvil.runtime.executor.Executor` by dlopen and a persistent team of threads.

    Threads are started when first asked for and stay until :meth:`close`. A run that does not return cannot be
    stopped from inside its own process: a thread in a kernel holds no lock and no Python, but it cannot be told to
    leave. So ``timeout`` is ignored here; what may hang is run isolated (``open_executor(target, isolated=True)``), as
    all checks are.
    """

    description = "in-process"
    generation = 0

    def __init__(self) -> None:
        self._team_functions = _team_library()
        self._libraries: list[ctypes.CDLL] = []
        self._blocks: dict[int, _Block] = {}  # by the address handed out
        self._threads: list[threading.Thread] = []  # workers 1, 2, ...
        self._team_block = self.alloc(self._team_functions.team_bytes())
        ctypes.memset(self._team_block, 0, self._team_functions.team_bytes())
        self._team = ctypes.c_void_p(self._team_block)
        self._closed = False

    def load(self, library: bytes) -> int:
        elf.require_machine(library, os.uname().machine)
        self._libraries.append(_dlopen(library, "anvil-kernels"))
        return len(self._libraries) - 1

    def symbol(self, library: int, name: str) -> int:
        try:
            function = getattr(self._libraries[library], name)
        except AttributeError:
            raise InputError(f"looking up a kernel: symbol={name!r} is not in library {library}") from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def alloc(self, nbytes: int, *, align: int = 64, guard: bool = False) -> int:
        pages = _round_up(max(nbytes, 1), _PAGE)
        boundary = max(align, _HUGE if nbytes >= _HUGE else _PAGE)
        total = pages + boundary + 2 * _PAGE
        mapping = self._map(total)
        start = _round_up(mapping + _PAGE, boundary)
        if nbytes >= _HUGE:
            _libc().madvise(start, pages, _MADV_HUGEPAGE)
        ctypes.memset(start, POISON, pages)
        address = start
        if guard:
            _libc().mprotect(start - _PAGE, _PAGE, _PROT_NONE)
            _libc().mprotect(start + pages, _PAGE, _PROT_NONE)
            address = (start + pages - nbytes) // align * align
        self._blocks[address] = _Block(mapping, total, start, pages)
        return address

    def free(self, address: int) -> None:
        block = self._blocks.pop(address)
        _libc().munmap(block.mapping, block.mapped)

    def write(self, address: int, data: memoryview | bytes, *, readonly: bool = False) -> None:
        block = self._block_at(address)
        if block.readonly:
            _libc().mprotect(block.first, block.usable, mmap.PROT_READ | mmap.PROT_WRITE)
        source = np.frombuffer(data, np.uint8)
        ctypes.memmove(address, source.ctypes.data, source.nbytes)
        if readonly:
            _libc().mprotect(block.first, block.usable, mmap.PROT_READ)
        block.readonly = readonly

    def read(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def array(self, address: int, shape: tuple[int, ...], dtype: np.dtype | str) -> np.ndarray:
        """A numpy view of memory at ``address`` (no copy); valid until the block is freed."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(address)), dtype).reshape(shape)

    def run(self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, timeout: float | None = None) -> None:
        self.run_prepared(self.prepare(program, words, threads=threads), timeout=timeout)

    def run_and_read(
        self,
        program: np.ndarray,
        words: np.ndarray,
        reads: Sequence[tuple[int, int]],
        *,
        threads: int = 1,
        timeout: float | None = None,
    ) -> list[bytes]:
        self.run(program, words, threads=threads)
        return [self.read(address, nbytes) for address, nbytes in reads]

    def prepare(
        self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, marks: np.ndarray | None = None
    ) -> Prepared:
        for name, array in (("program", program), ("words", words)):
            if array.dtype != np.int64 or not array.flags.c_contiguous:
                raise InputError(f"running a program: {name} has dtype={array.dtype}; expected contiguous int64")
        if marks is not None and (marks.dtype != np.uint8 or marks.shape != program.shape[:1]):
            raise InputError(
                f"running a program: marks has dtype={marks.dtype} shape={marks.shape}; "
                f"expected one uint8 for each of {len(program)} rows"
            )
        self._grow(threads)
        arguments = (
            self._team,
            ctypes.c_void_p(program.ctypes.data),
            ctypes.c_int64(len(program)),
            ctypes.c_void_p(words.ctypes.data),
            ctypes.c_void_p(None if marks is None else marks.ctypes.data),
            ctypes.c_int64(threads),
        )
        return Prepared(arguments, (program, words, marks))

    def run_prepared(self, prepared: Prepared, *, timeout: float | None = None) -> None:
        self._team_functions.team_run(*prepared.arguments)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._team_functions.team_stop(self._team, len(self._threads) + 1)
        for thread in self._threads:
            thread.join()
        for address in list(self._blocks):
            self.free(address)

    def _grow(self, threads: int) -> None:
        most = self._team_functions.team_max_threads()
        if not 1 <= threads <= most:
            raise InputError(f"running a program: threads={threads}; expected 1..{most}")
        while len(self._threads) + 1 < threads:
            tid = len(self._threads) + 1
            worker = threading.Thread(
                target=self._team_functions.team_work, args=(self._team, tid), name=f"anvil-{tid}", daemon=True
            )
            worker.start()
            self._threads.append(worker)

    def _block_at(self, address: int) -> _Block:
        if address in self._blocks:
            return self._blocks[address]
        for block in self._blocks.values():
            if block.first <= address < block.first + block.usable:
                return block
        raise InputError(f"writing to memory: address={address:#x} is not in any block of this executor")

    def _map(self, nbytes: int) -> int:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapping = _libc().mmap(None, nbytes, protection, _PRIVATE_ANONYMOUS, -1, 0)
        if mapping in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"allocating {nbytes} bytes for kernels: {os.strerror(ctypes.get_errno())}")
        return mapping


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
