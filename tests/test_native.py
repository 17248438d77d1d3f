"""The in-process executor: its thread team under stress, its memory, its libraries."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from metal_kernels import FMA, POKE

from anvil import codegen, targets
from anvil.errors import InputError
from anvil.runtime.native import NativeExecutor
from anvil.runtime.waves import ALONE

AVX2 = targets.get("x86_64-avx2")
ONE = int(np.float32(1).view(np.int32))


@pytest.fixture
def executor() -> Iterator[NativeExecutor]:
    opened = NativeExecutor()
    yield opened
    opened.close()


def load(executor: NativeExecutor, *kernels) -> dict[str, int]:
    library = codegen.compile_library(kernels, AVX2)
    handle = executor.load(library.data)
    return {name: executor.symbol(handle, symbol) for name, symbol in library.symbols.items()}


def chain(executor: NativeExecutor, entry: int, rows: int, n: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A program of ``rows`` rows where row i makes buffer i + 1 of buffer i plus one; needs every barrier."""
    buffers = [executor.alloc(4 * n) for _ in range(rows + 1)]
    executor.array(buffers[0], (n,), "f4")[:] = 0
    words, program = [], []
    for source, target in itertools.pairwise(buffers):
        program.append((entry, len(words)))
        words += [source, source, 0, n, 1, target, target, 0, n, 1, ONE, ONE]
    return np.array(program, np.int64), np.array(words, np.int64), buffers


def test_runs_with_changing_thread_counts_never_lose_or_mix_rows(executor: NativeExecutor) -> None:
    """More threads than cores, workers idle and asleep in between: 400 runs, each checked."""
    rows, n = 12, 100
    program, words, buffers = chain(executor, load(executor, FMA)["fma_f32"], rows, n)
    last = executor.array(buffers[-1], (n,), "f4")
    for turn in range(400):
        executor.array(buffers[0], (n,), "f4")[:] = turn
        last[:] = -1
        executor.run(program, words, threads=(1, 3, 2, 5, 2, 4)[turn % 6])
        assert (last == turn + rows).all(), turn


def test_a_program_without_rows_returns(executor: NativeExecutor) -> None:
    executor.run(np.empty((0, 2), np.int64), np.empty(0, np.int64), threads=2)
    executor.run(np.empty((0, 2), np.int64), np.empty(0, np.int64), threads=1)


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_an_impossible_number_of_threads_is_refused(executor: NativeExecutor, threads: int) -> None:
    with pytest.raises(InputError, match=f"threads={threads}; expected 1..256"):
        executor.run(np.empty((0, 2), np.int64), np.empty(0, np.int64), threads=threads)


def test_closing_ends_the_threads(executor: NativeExecutor) -> None:
    entry = load(executor, FMA)["fma_f32"]
    program, words, _ = chain(executor, entry, 2, 16)
    before = set(threading.enumerate())
    executor.run(program, words, threads=3)
    workers = set(threading.enumerate()) - before
    assert {thread.name for thread in workers} == {"anvil-1", "anvil-2"}
    executor.close()
    assert not any(thread.is_alive() for thread in workers)


def test_two_libraries_keep_their_own_symbols(executor: NativeExecutor) -> None:
    """The system's loader takes two files for one when their paths are equal."""
    first, second = load(executor, FMA), load(executor, POKE)
    assert first.keys() == {"fma_f32"} and second.keys() == {"poke_i8"}


def test_large_blocks_start_on_a_huge_page(executor: NativeExecutor) -> None:
    assert executor.alloc(3 << 20) % (2 << 20) == 0


def test_an_array_is_a_view_and_not_a_copy(executor: NativeExecutor) -> None:
    address = executor.alloc(24)
    executor.array(address, (2, 3), "f4")[1, 2] = 7
    assert np.frombuffer(executor.read(address, 24), "f4")[5] == 7


def test_marked_rows_run_on_one_thread_without_a_barrier(executor: NativeExecutor) -> None:
    """Each row needs the one before, and none waits: right only if thread 0 does all of all rows, every time."""
    rows, n = 12, 1000
    program, words, buffers = chain(executor, load(executor, FMA)["fma_f32"], rows, n)
    last = executor.array(buffers[-1], (n,), "f4")
    prepared = executor.prepare(program, words, threads=3, marks=np.full(rows, ALONE, np.uint8))
    for turn in range(100):
        executor.array(buffers[0], (n,), "f4")[:] = turn
        executor.run_prepared(prepared)
        assert (last == turn + rows).all(), turn


def test_rows_without_a_mark_to_wait_are_complete_when_a_run_returns(executor: NativeExecutor) -> None:
    entry, n = load(executor, FMA)["fma_f32"], 1000
    pieces = [chain(executor, entry, 1, n) for _ in range(8)]  # eight rows that have nothing to do with each other
    words = np.concatenate([own for _, own, _ in pieces])
    program = np.array([(entry, number * len(pieces[0][1])) for number in range(8)], np.int64)
    prepared = executor.prepare(program, words, threads=3, marks=np.zeros(8, np.uint8))
    for turn in range(100):
        for _, _, (source, _) in pieces:
            executor.array(source, (n,), "f4")[:] = turn
        executor.run_prepared(prepared)
        assert all((executor.array(target, (n,), "f4") == turn + 1).all() for _, _, (_, target) in pieces), turn


def test_marks_that_do_not_fit_the_rows_are_refused(executor: NativeExecutor) -> None:
    with pytest.raises(InputError, match="expected one uint8 for each of 2 rows"):
        executor.prepare(np.zeros((2, 2), np.int64), np.empty(0, np.int64), marks=np.zeros(3, np.uint8))
