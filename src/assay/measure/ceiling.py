"""The two ceilings of this machine, measured: bytes read per second, and multiply-adds per second.

A speed means something beside the ceiling only: decoding reads every weight once per token, so its tokens per second
cannot exceed read bandwidth over weight bytes. A result above its ceiling is a fault of the benchmark, and is refused.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Self

from assay.cache import cached
from assay.errors import AssayError

SOURCE = Path(__file__).with_name("probes.c")
LEAST_BYTES = 256 << 20
MOST_BYTES = 1 << 30
REPEATS = 5
STREAMS = (1, 2, 4, 8)  # parts of its share that a thread reads side by side
ALIGN = 4096  # bytes a share must be a multiple of, so that every stream of the widest loop ends evenly


class TruthError(AssayError):
    """A measured speed is above the measured ceiling: the benchmark measured something else than it says."""


@dataclass(frozen=True)
class Ceiling:
    """Best of several runs on ``threads`` threads. ``nbytes`` of random data were read, more than the caches hold."""

    threads: int
    read_gb_s: float
    fma_gflop_s: float
    nbytes: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class Probes:
    """The memory and the code to measure both ceilings again and again with ``threads`` threads.

    The speed of memory moves while other programs of the machine come and go: a benchmark holds its probes open and
    measures before, between and after its own runs, and :meth:`ceiling` is the best that was seen.

    ``nbytes`` is what the program in question reads per pass: data of the same size enjoy the same share of cache.
    It is raised to four times the last-level cache, at most ``MOST_BYTES``, so that the caches cannot hold it.
    """

    def __init__(self, threads: int, nbytes: int | None = None) -> None:
        size = min(max(nbytes or 0, LEAST_BYTES, 4 * last_level_cache()), MOST_BYTES)
        self._threads, self._size = threads, size - size % (ALIGN * threads)
        self._libraries = [_library(width) for width in _widths()]
        self._read = self._fma = 0.0
        self._memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared: small pages
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        share = self._size // threads
        _together(threads, lambda i: self._libraries[0].fill(self._start() + i * share, share // 8, i + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    def measure(self, repeats: int = REPEATS) -> Self:
        """Run all probes ``repeats`` times: a second or less. The best result of all calls counts."""
        for library in self._libraries:
            sweeps = [_sweep(library, streams) for streams in STREAMS]
            self._read = max(self._read, *(self._once(sweep) for _ in range(repeats) for sweep in sweeps))
            self._fma = max(self._fma, _fma(library, self._threads, repeats))
        return self

    def ceiling(self) -> Ceiling:
        """The best seen so far."""
        return Ceiling(self._threads, self._read / 1e9, self._fma / 1e9, self._size)

    def _once(self, sweep: Callable[[int, int], float]) -> float:
        """Bytes read per second in one pass over the memory, a share for each thread."""
        share, start = self._size // self._threads, self._start()
        return self._size / _together(self._threads, lambda i: sweep(start + i * share, share // 4))

    def _start(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


def measure(threads: int, nbytes: int | None = None, repeats: int = REPEATS) -> Ceiling:
    """Both ceilings, measured now; see :class:`Probes`."""
    with Probes(threads, nbytes) as probes:
        return probes.measure(repeats).ceiling()


def check_truth(what: str, achieved: float, ceiling: float, unit: str = "GB/s") -> None:
    """Raise :class:`TruthError` when ``achieved`` exceeds ``ceiling``; both in ``unit``."""
    if achieved > ceiling:
        raise TruthError(
            f"timing {what}: {achieved:.2f} {unit} is above the measured ceiling of {ceiling:.2f} {unit}; the work was "
            "not done, the data lay in cache, or the machine changed its speed in between: measure again on a quiet one"
        )


@cache
def last_level_cache() -> int:
    """Bytes of the largest cache of CPU 0, 0 when the system does not say."""
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0) for size in sizes), default=0)


def _together(threads: int, work: Callable[[int], object]) -> float:
    """Seconds from the first start to the last end of ``work(0)`` … ``work(threads - 1)``, one thread each.

    The foreign calls release the interpreter lock, so the threads do run side by side.
    """
    barrier, times = threading.Barrier(threads), [(0.0, 0.0)] * threads

    def run(index: int) -> None:
        barrier.wait()
        begin = time.perf_counter()
        work(index)
        times[index] = (begin, time.perf_counter())

    team = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return max(end for _, end in times) - min(begin for begin, _ in times)


def _sweep(library: ctypes.CDLL, streams: int) -> Callable[[int, int], float]:
    sweep = library[f"read_sweep_{streams}"]
    sweep.argtypes, sweep.restype = (ctypes.c_void_p, ctypes.c_long), ctypes.c_float
    return sweep


def _fma(library: ctypes.CDLL, threads: int, repeats: int) -> float:
    """Floating-point operations per second; each run lasts about 20 ms."""
    operations = (ctypes.c_long * threads)()

    def spin(rounds: int) -> float:
        def work(index: int) -> None:
            place = ctypes.addressof(operations) + index * ctypes.sizeof(ctypes.c_long)
            library.fma_spin(rounds, ctypes.c_float(0.999), ctypes.c_float(0.001), place)

        return _together(threads, work)

    rounds = 100_000
    while (seconds := spin(rounds)) < 0.02:
        rounds *= 2
    return max(sum(operations) / seconds for seconds in [seconds, *(spin(rounds) for _ in range(repeats - 1))])


def _widths() -> tuple[int, ...]:
    """Vector widths in bytes worth trying: where 512-bit vectors exist, 256-bit ones may still be as fast."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text() if info.exists() else ""
    return (64, 32) if "avx512f" in flags else (32,)


@cache
def _library(width: int) -> ctypes.CDLL:
    """The compiled probes. The name holds what they depend on: source, vector width, and this CPU's features."""
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O3", "-march=native"]
    command += ["-ffreestanding", "-nostdlib", f"-DWIDTH={width}", str(SOURCE), "-o"]
    info = Path("/proc/cpuinfo")
    features = next((line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    key = sha256(f"{SOURCE.read_text()}{width}{features}".encode()).hexdigest()[:16]

    def build(path: Path) -> None:
        scratch = {"ZIG_GLOBAL_CACHE_DIR": str(path.parent), "ZIG_LOCAL_CACHE_DIR": str(path.parent)}
        environment = {**os.environ, **scratch}  # the compiler's own cache would be in a home that may be read-only
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise AssayError(f"compiling the speed probes with {' '.join(command[:4])}: {done.stderr.strip()[:500]}")

    library = ctypes.CDLL(str(cached(f"probes/{key}.so", build)))
    library.fma_spin.argtypes = (ctypes.c_long, ctypes.c_float, ctypes.c_float, ctypes.c_void_p)
    library.fma_spin.restype = ctypes.c_float
    library.fill.argtypes, library.fill.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_ulonglong), None
    return library
