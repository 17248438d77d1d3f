"""Every way of running kernels: the same bits everywhere, and every kind of crash is a finding with its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from metal_kernels import DOT, FMA, HANG, POKE, memory_kernel

from anvil import codegen, targets
from anvil.errors import InputError, KernelError
from anvil.runtime import open_executor, status
from anvil.runtime.executor import POISON, Executor

KERNELS = (DOT, FMA, HANG, POKE, *map(memory_kernel, ("memset", "memcpy", "memmove")))
#: (target, how it is run: None is the isolated way this machine would choose)
ISOLATED = [(target.name, None) for target in targets.quick_targets()] + [("x86_64-avx512", "bochs")]
WAYS = [*ISOLATED, ("x86_64-avx2", "in-process")]


class Bench:
    """An executor with the test kernels loaded."""

    def __init__(self, executor: Executor, target: targets.Target) -> None:
        self.executor, self.target = executor, target
        library = codegen.compile_library(KERNELS, target)
        handle = executor.load(library.data)
        self.entry = {name: executor.symbol(handle, symbol) for name, symbol in library.symbols.items()}

    def program(self, *calls: tuple[str, list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """(program, words) that call each kernel with its words in turn."""
        rows, words = [], []
        for name, arguments in calls:
            rows.append((self.entry[name], len(words)))
            words += arguments
        return np.array(rows, np.int64), np.array(words, np.int64)


def _id(way: tuple[str, str | None]) -> str:
    return f"{way[0]}-{way[1] or 'isolated'}"


@pytest.fixture(params=WAYS, ids=_id, scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from _open(*request.param)


@pytest.fixture(params=ISOLATED, ids=_id, scope="module")
def isolated(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from _open(*request.param)


def _open(name: str, force: str | None) -> Iterator[Bench]:
    executor = open_here(targets.get(name), force)
    yield Bench(executor, targets.get(name))
    executor.close()


def open_here(target: targets.Target, force: str | None = None) -> Executor:
    """An executor, or a skip that says what this machine lacks."""
    isolated = force != "in-process"
    here = status(target, isolated=isolated, force=force)
    if not here.runs:
        pytest.skip(here.reason)
    return open_executor(target, isolated=isolated, force=force)


def vector(address: int, n: int) -> list[int]:
    """The words of a contiguous rank-1 memref."""
    return [address, address, 0, n, 1]


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def run_fma(bench: Bench, x: np.ndarray, threads: int) -> np.ndarray:
    """fma(x, 1.1, 0.3) by the kernel, in guarded memory, x read-only."""
    source = bench.executor.alloc(x.nbytes, align=4, guard=True)
    target = bench.executor.alloc(x.nbytes, align=4, guard=True)
    bench.executor.write(source, x.tobytes(), readonly=True)
    arguments = [*vector(source, x.size), *vector(target, x.size), bits(1.1), bits(0.3)]
    program, words = bench.program(("fma_f32", arguments))
    (answer,) = bench.executor.run_and_read(program, words, [(target, x.nbytes)], threads=threads)
    bench.executor.free(source)
    bench.executor.free(target)
    return np.frombuffer(answer, np.float32)


def fma_exactly(x: np.ndarray) -> np.ndarray:
    """float32(x * 1.1 + 0.3), rounded once: the product of two float32 is exact in float64 and the sum nearly so."""
    return (x.astype(np.float64) * np.float64(np.float32(1.1)) + np.float64(np.float32(0.3))).astype(np.float32)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 33, 1000])
def test_a_kernel_computes_the_same_bits_for_any_number_of_threads(bench: Bench, n: int) -> None:
    x = np.linspace(-3, 5, n, dtype=np.float32)
    for threads in (1, 2, 3):
        assert run_fma(bench, x, threads).tobytes() == fma_exactly(x).tobytes(), threads


def test_fresh_memory_is_poisoned_with_nans(bench: Bench) -> None:
    address = bench.executor.alloc(100)
    found = bench.executor.read(address, 100)
    assert found == bytes([POISON]) * 100
    assert np.isnan(np.frombuffer(found, np.float32)).all()


def test_memory_used_again_is_poisoned_again(bench: Bench) -> None:
    first = bench.executor.alloc(100)
    bench.executor.write(first, bytes(100))
    bench.executor.free(first)
    assert bench.executor.read(bench.executor.alloc(100), 100) == bytes([POISON]) * 100


def test_a_prepared_program_sees_words_changed_between_runs(bench: Bench) -> None:
    address = bench.executor.alloc(8)
    program, words = bench.program(("poke_i8", [*vector(address, 8), 0]))
    prepared = bench.executor.prepare(program, words)
    for at in (2, 5):
        words[-1] = at
        bench.executor.run_prepared(prepared)
    assert bench.executor.read(address, 8) == bytes([255, 255, 1, 255, 255, 1, 255, 255])


def test_rows_run_in_order(bench: Bench) -> None:
    x = bench.executor.alloc(64)
    y = bench.executor.alloc(64)
    bench.executor.write(x, np.full(16, 2, np.float32).tobytes())
    double = [*vector(x, 16), *vector(y, 16), bits(2), bits(0)]
    add_one = [*vector(y, 16), *vector(x, 16), bits(1), bits(1)]
    program, words = bench.program(("fma_f32", double), ("fma_f32", add_one), ("fma_f32", double))
    (answer,) = bench.executor.run_and_read(program, words, [(y, 64)], threads=2)
    assert np.frombuffer(answer, np.float32).tolist() == [10.0] * 16


MEMORY = [("memset", 10, 0, 1), ("memset", 3, 0, 70), ("memcpy", 0, 40, 33), ("memcpy", 64, 1, 63)]
MEMORY += [("memmove", 1, 0, 100), ("memmove", 0, 1, 100), ("memmove", 50, 50, 9), ("memcpy", 5, 9, 0)]


@pytest.mark.parametrize(("function", "to", "source", "n"), MEMORY)
def test_memory_routines_come_with_the_library(bench: Bench, function: str, to: int, source: int, n: int) -> None:
    content = bytearray(range(128))
    address = bench.executor.alloc(128)
    bench.executor.write(address, bytes(content))
    program, words = bench.program((f"call_{function}", [*vector(address, 128), to, source, n]))
    (answer,) = bench.executor.run_and_read(program, words, [(address, 128)])
    content[to : to + n] = bytes([7]) * n if function == "memset" else content[source : source + n]
    assert answer == content


def test_words_of_another_type_are_refused(bench: Bench) -> None:
    program, words = bench.program(("poke_i8", [*vector(bench.executor.alloc(8), 8), 0]))
    with pytest.raises(InputError, match="words has dtype=int32; expected"):
        bench.executor.run(program, words.astype(np.int32))


def test_an_unknown_symbol_is_refused(bench: Bench) -> None:
    library = codegen.compile_library([POKE], bench.target)
    with pytest.raises(InputError, match="symbol='absent' is not in library"):
        bench.executor.symbol(bench.executor.load(library.data), "absent")


def test_a_write_past_the_end_is_a_finding_that_names_the_row(isolated: Bench) -> None:
    address = isolated.executor.alloc(100, align=1, guard=True)
    inside, outside = [*vector(address, 100), 99], [*vector(address, 100), 100]
    program, words = isolated.program(("poke_i8", inside), ("poke_i8", outside))
    place = r"SIGSEGV in row 1 \(poke_i8\), thread 0 at address 0x\w+, 0 bytes past the end of the block of 100 bytes"
    with pytest.raises(KernelError, match=place) as caught:
        isolated.executor.run(program, words)
    assert (caught.value.signal, caught.value.row) == ("SIGSEGV", 1)


def test_a_write_before_the_first_page_is_a_finding(isolated: Bench) -> None:
    address = isolated.executor.alloc(4096, guard=True)
    program, words = isolated.program(("poke_i8", [*vector(address, 4096), -1]))
    with pytest.raises(KernelError, match=r"SIGSEGV in row 0 .* 1 bytes before the block of 4096 bytes"):
        isolated.executor.run(program, words)


def test_a_write_before_an_unguarded_block_is_a_finding(isolated: Bench) -> None:
    program, words = isolated.program(("poke_i8", [*vector(isolated.executor.alloc(100), 100), -1]))
    with pytest.raises(KernelError, match="1 bytes before the block of 100 bytes"):
        isolated.executor.run(program, words)


def test_a_write_to_a_weight_is_a_finding(isolated: Bench) -> None:
    address = isolated.executor.alloc(100)
    isolated.executor.write(address, bytes(100), readonly=True)
    program, words = isolated.program(("poke_i8", [*vector(address, 100), 7]))
    with pytest.raises(KernelError, match=r"SIGSEGV.*byte 7 of the read-only block of 100 bytes"):
        isolated.executor.run(program, words)


def test_the_client_may_write_to_read_only_memory_again(bench: Bench) -> None:
    address = bench.executor.alloc(9000, guard=True)
    for content in (b"old!", b"new!"):
        bench.executor.write(address + 8996, content, readonly=True)
    assert bench.executor.read(address + 8996, 4) == b"new!"


def test_a_kernel_that_does_not_return_is_a_finding(isolated: Bench) -> None:
    address = isolated.executor.alloc(8)
    program, words = isolated.program(("poke_i8", [*vector(address, 8), 0]), ("hang_i8", vector(address, 8)))
    with pytest.raises(KernelError, match=r"hang: no return within 0.2 s in row 1 \(hang_i8\)") as caught:
        isolated.executor.run(program, words, timeout=0.2)
    assert (caught.value.signal, caught.value.row) == ("SIGALRM", 1)


def test_the_executor_goes_on_after_a_crash(isolated: Bench) -> None:
    before = isolated.executor.generation
    address = isolated.executor.alloc(8)
    program, words = isolated.program(("poke_i8", [*vector(0, 8), 0]))
    with pytest.raises(KernelError, match="a null pointer"):
        isolated.executor.run(program, words)
    isolated.executor.free(address)  # lost with its process: nothing to do
    x = np.arange(33, dtype=np.float32)
    assert run_fma(isolated, x, 2).tobytes() == fma_exactly(x).tobytes()
    assert isolated.executor.generation == before + 1


def test_an_address_lost_in_a_crash_is_not_handed_out_again(isolated: Bench) -> None:
    address = isolated.executor.alloc(8)
    program, words = isolated.program(("poke_i8", [*vector(0, 8), 0]))
    with pytest.raises(KernelError):
        isolated.executor.run(program, words)
    assert isolated.executor.alloc(8) != address


def test_writing_where_nothing_was_allocated_is_refused(bench: Bench) -> None:
    with pytest.raises(InputError, match="address=0x1000 is not in any block"):
        bench.executor.write(0x1000, b"x")


def test_a_read_of_negative_size_leaves_nothing_behind(isolated: Bench) -> None:
    program, words = isolated.program(("poke_i8", [*vector(0, 8), 0]))  # never sent: it would crash
    with pytest.raises(InputError, match="expected none negative"):
        isolated.executor.run_and_read(program, words, [(4096, -16)])
    x = np.arange(33, dtype=np.float32)
    assert run_fma(isolated, x, 2).tobytes() == fma_exactly(x).tobytes()


def test_megabytes_travel_both_ways(isolated: Bench) -> None:
    data = np.random.default_rng(1).bytes(9_000_001)
    address = isolated.executor.alloc(len(data), guard=True)
    isolated.executor.write(address, data)
    assert isolated.executor.read(address, len(data)) == data


AARCH64, RISCV, AVX512 = (targets.get(name) for name in ("aarch64-neon", "riscv64-rvv-vlen128", "x86_64-avx512"))
LESSER = {
    "cortex-a53, which has no dot product": dataclasses.replace(
        AARCH64, emulator=("qemu-aarch64", "-cpu", "cortex-a53")
    ),
    "rv64 without vectors": dataclasses.replace(RISCV, emulator=("qemu-riscv64", "-cpu", "rv64,v=false")),
    "broadwell, which has no AVX-512": dataclasses.replace(AVX512, bochs="broadwell_ult"),
}


@pytest.mark.parametrize("target", LESSER.values(), ids=LESSER.keys())
def test_an_instruction_the_cpu_lacks_is_a_finding(target: targets.Target) -> None:
    executor = open_here(target, force="bochs" if target.bochs else None)
    bench = Bench(executor, target)
    x, y = executor.alloc(64), executor.alloc(4)
    program, words = bench.program(("dot_i8", [*vector(x, 64), *vector(y, 1)]))
    with pytest.raises(KernelError, match=r"SIGILL in row 0 \(dot_i8\)") as caught:
        executor.run(program, words)
    assert caught.value.signal == "SIGILL"
    executor.close()
