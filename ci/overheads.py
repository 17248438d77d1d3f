"""Prints the small costs that design decisions rest on (docs/adr): what a kernel call, a link and a C file take here.

Usage: python ci/overheads.py [--repeats 200]

Every figure is the median of its repeats, in microseconds. Times under an emulator are the emulator's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from anvil import codegen, kernels, targets
from anvil.codegen import tools
from anvil.runtime import open_executor, status
from anvil.runtime.executor import Executor

ROWS = 1000  # calls in one program, so that the cost of starting it does not count


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds one call of ``work`` takes, after one that is not counted."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken)


def one_element_program(executor: Executor, target: targets.Target, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """``rows`` calls of the smallest kernel there is work for: swiglu of 1 x 1."""
    kernel = kernels.get("swiglu").build(target)
    library = codegen.compile_library([kernel], target)
    entry = executor.symbol(executor.load(library.data), library.symbols[kernel.name])
    address = executor.alloc(4)
    words = np.array([address, address, 0, 1, 1, 1, 1] * 3, np.int64)
    return np.array([(entry, 0)] * rows, np.int64).reshape(rows, 2), words


def round_trips(repeats: int) -> Iterator[tuple[str, float]]:
    """One call through the runner of each main target: requests out, one kernel, the answer back (decision 7)."""
    for target in targets.quick_targets():
        if status(target, isolated=True).runs:
            executor = open_executor(target, isolated=True)
            program, words = one_element_program(executor, target, 1)
            yield (
                f"call of {target.name}, {executor.description}",
                median_ms(lambda e=executor, p=program, w=words: e.run(p, w), repeats),
            )
            executor.close()


def rows_in_process(repeats: int) -> Iterator[tuple[str, float]]:
    """A row of a program in this process: the call and, with two threads, the barrier behind it (decisions 3 and 4)."""
    target = next((t for t in targets.quick_targets() if not status(t).executor.startswith(("qemu", "bochs"))), None)
    if target is None or not status(target).runs:
        return
    executor = open_executor(target)
    program, words = one_element_program(executor, target, ROWS)
    for threads in (1, 2):
        yield f"row in process, {threads} threads", median_ms(
            lambda threads=threads: executor.run(program, words, threads=threads), repeats
        ) / ROWS  # fmt: skip
    executor.close()


def toolchain(repeats: int) -> Iterator[tuple[str, float]]:
    """One link, and one freestanding C file, both without the cache (decision 9)."""
    target = targets.get("aarch64-neon")
    kernel = codegen.compile_kernel(kernels.get("swiglu").build(target), target)
    yield "link of one kernel", median_ms(lambda: codegen.link([kernel], target), max(3, repeats // 20))

    def compile_afresh() -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ANVIL_CACHE"] = folder
            tools.compile_c("runner.c", target.machine, *tools.STATIC)

    before = os.environ.get("ANVIL_CACHE")
    try:
        yield "compilation of runner.c", median_ms(compile_afresh, max(3, repeats // 20))
    finally:
        os.environ.pop("ANVIL_CACHE")
        if before is not None:
            os.environ["ANVIL_CACHE"] = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    for part in (round_trips, rows_in_process, toolchain):
        for what, ms in part(repeats):
            print(f"{what:<64} {1e3 * ms:12.2f} us")


if __name__ == "__main__":
    main()
