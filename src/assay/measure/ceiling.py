"""The two ceilings of this machine, measured: bytes read per second, and multiply-adds per second.

A speed means something beside the ceiling only: decoding reads every weight once per token, so its tokens per second
cannot exceed read bandwidth over weight bytes. A result above its ceiling is a fault of the benchmark, and is refused.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

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


def measure(threads: int, nbytes: int | None = None, repeats: int = REPEATS) -> Ceiling:
    """Measure both ceilings with ``threads`` threads; takes about a second.

    ``nbytes`` is what the program in question reads per pass: data of the same size enjoy the same share of cache.
    It is raised to four times the last-level cache, so that the caches cannot hold it.
    """
    size = min(max(nbytes or 0, LEAST_BYTES, 4 * last_level_cache()), MOST_BYTES)
    size -= size % (ALIGN * threads)
    libraries = [_library(width) for width in _widths()]
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        read = max(_read(library, memory, threads, repeats) for library in libraries)
    return Ceiling(threads, read / 1e9, max(_fma(library, threads, repeats) for library in libraries) / 1e9, size)


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


def _read(library: ctypes.CDLL, memory: mmap.mmap, threads: int, repeats: int) -> float:
    """Bytes read per second from ``memory``, which each thread first fills with its share of random numbers."""
    size = len(memory)
    share = size // threads
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _together(threads, lambda i: library.fill(start + i * share, share // 8, i + 1))

    def once(streams: int) -> float:
        sweep = library[f"read_sweep_{streams}"]
        sweep.argtypes, sweep.restype = (ctypes.c_void_p, ctypes.c_long), ctypes.c_float
        return size / _together(threads, lambda i: sweep(start + i * share, share // 4))

    return max(once(streams) for _ in range(repeats) for streams in STREAMS)


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
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssayError(f"compiling the speed probes with {' '.join(command[:4])}: {done.stderr.strip()[:500]}")

    library = ctypes.CDLL(str(cached(f"probes/{key}.so", build)))
    library.fma_spin.argtypes = (ctypes.c_long, ctypes.c_float, ctypes.c_float, ctypes.c_void_p)
    library.fma_spin.restype = ctypes.c_float
    library.fill.argtypes, library.fill.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_ulonglong), None
    return library
