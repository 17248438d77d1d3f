"""The runner's byte stream, the placing of libraries and of memory, and what happens when something is wrong."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from metal_kernels import POKE

from anvil import codegen, targets
from anvil.codegen import backend
from anvil.errors import EmulatorError, InputError, KernelError
from anvil.runtime import elf, open_executor, status
from anvil.runtime.address_space import PAGE, AddressSpace
from anvil.runtime.bochs_worker import Machine
from anvil.runtime.channel import Channel, Died, Fault
from anvil.runtime.runner import RunnerExecutor

AVX2 = targets.get("x86_64-avx2")
MAP, READ, RUN = 1, 5, 6


@pytest.fixture
def runner() -> Iterator[RunnerExecutor]:
    here = status(AVX2, isolated=True)
    if not here.runs:
        pytest.skip(here.reason)
    executor = open_executor(AVX2, isolated=True)
    assert isinstance(executor, RunnerExecutor)
    yield executor
    executor.close()


@pytest.fixture
def channel(runner: RunnerExecutor) -> Iterator[Channel]:
    opened = runner.connect()
    yield opened
    opened.close()


def request(*numbers: int) -> bytes:
    return struct.pack("<5Q", *numbers, *[0] * (5 - len(numbers)))


# ---- the byte stream ----


def test_an_unknown_request_is_reported(channel: Channel) -> None:
    channel.send(request(99))
    with pytest.raises(Fault) as caught:
        channel.exchange([0], patience=10)
    assert (caught.value.kind, caught.value.address) == (3, 99)


def test_memory_is_not_mapped_over_what_is_there(channel: Channel) -> None:
    for _ in range(2):
        channel.send(request(MAP, 64 << 30, PAGE, 0))
    channel.send(request(READ, 64 << 30, 8))
    with pytest.raises(Fault) as caught:
        channel.exchange([8], patience=10)
    assert caught.value.kind == 2


def test_a_report_is_heard_even_while_data_is_being_sent(channel: Channel) -> None:
    channel.send(request(99))
    with pytest.raises(Fault):
        for _ in range(100):
            channel.send(bytes(1 << 20), patience=10)


def test_a_process_that_says_nothing_is_given_up() -> None:
    channel = Channel([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(Died, match=r"no answer for 0\.1 s"):
        channel.exchange([8], patience=0.1)
    channel.close()


def test_the_last_words_of_a_process_are_passed_on() -> None:
    channel = Channel([sys.executable, "-c", "import sys; sys.exit('the board is on fire')"])
    with pytest.raises(Died, match=r"it ended \(exit status 1\): the board is on fire"):
        channel.exchange([8], patience=30)
    channel.close()


def test_a_runner_killed_from_outside_is_an_error_and_another_is_started(runner: RunnerExecutor) -> None:
    address = runner.alloc(8)
    assert runner._channel is not None
    os.kill(runner._channel._process.pid, signal.SIGKILL)
    with pytest.raises(KernelError, match=r"the process was lost: it ended \(killed by signal 9\)"):
        runner.read(address, 8)
    assert runner.read(runner.alloc(8), 8) == b"\xff" * 8
    assert runner.generation == 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("qemu-riscv64: ../../target/riscv/translate.c:213: f: Assertion `a != NULL' failed.", EmulatorError),
        ("bochs: cannot run a gather or scatter whose index is in a vector register from 16 on", EmulatorError),
        ("qemu: uncaught target signal 11 (Segmentation fault) - core dumped", KernelError),
    ],
)
def test_an_emulator_that_fails_its_own_assertion_says_nothing_of_the_kernel(words: str, kind: type) -> None:
    command = [sys.executable, "-c", f"import sys; sys.exit({words!r})"]
    executor = RunnerExecutor(lambda: Channel(command), "qemu-riscv64 7.2.22", "riscv64")
    with pytest.raises(KernelError) as caught:
        executor.read(executor.alloc(8), 8)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("62727d41933c04", True),  # vgatherqps (%rsp,%zmm16), %ymm15 {%k1}
        ("6272fd4192440504", True),  # vgatherdpd 32(%rbp,%ymm16), %zmm8 {%k1}
        ("62627d41a29c0401010000", True),  # vscatterdps %zmm27, 257(%rsp,%zmm16) {%k1}
        ("62727d49933c04", False),  # vgatherqps (%rsp,%zmm0), %ymm15 {%k1}
        ("623385481af901", False),  # vinsertf64x4 $1, %ymm17, %zmm15, %zmm15
        ("0f0b", False),  # ud2
    ],
)
def test_what_bochs_wrongly_takes_for_an_invalid_instruction_is_told_by_its_bytes(code: str, refused: bool) -> None:
    before = bytes(16) + bytes.fromhex(code)
    memory = SimpleNamespace(read=lambda address, nbytes: before[address : address + nbytes])
    assert Machine._is_high_gather(SimpleNamespace(memory=memory), len(before)) is refused  # type: ignore[arg-type]


def test_a_runner_that_nobody_closes_ends_in_silence_with_the_interpreter() -> None:
    opened = "runtime.open_executor(targets.get('x86_64-avx2'), isolated=True)"
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"from anvil import runtime, targets; kept = {opened}; kept.alloc(64)",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_closing_twice_is_allowed_and_closing_ends_the_process(runner: RunnerExecutor) -> None:
    runner.alloc(8)
    assert runner._channel is not None
    process = runner._channel._process
    runner.close()
    runner.close()
    assert process.returncode is not None


def test_a_program_of_another_type_is_refused(runner: RunnerExecutor) -> None:
    with pytest.raises(InputError, match="program has dtype=float64; expected int64"):
        runner.run(np.zeros((1, 2)), np.zeros(1, np.int64))


# ---- libraries ----


def test_a_library_is_relocated_to_where_it_is_placed() -> None:
    library = codegen.compile_library([POKE], AVX2).data
    low, high = elf.place(library, 1 << 20), elf.place(library, 1 << 30)
    offset = high.base - low.base
    assert {name: value + offset for name, value in low.symbols.items()} == high.symbols
    assert all(segment.address >= high.base for segment in high.segments)


def test_code_is_never_writable() -> None:
    for target in targets.quick_targets():
        image = elf.place(codegen.compile_library([POKE], target).data, 1 << 30)
        forbidden = elf.PROT_WRITE | elf.PROT_EXEC
        assert not any(segment.protection & forbidden == forbidden for segment in image.segments), target.name


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF" + bytes(100), b"MZ" + bytes(100)])
def test_what_is_not_a_kernel_library_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="placing a kernel library: expected an ELF file for one of"):
        elf.place(data, 1 << 20)


@pytest.mark.parametrize("force", ["in-process", "runner"])
def test_a_library_for_another_machine_is_refused(force: str) -> None:
    executor = open_executor(AVX2, force=force)
    library = codegen.compile_library([POKE], targets.get("aarch64-neon")).data
    with pytest.raises(InputError, match="it is for machine=aarch64, expected x86_64"):
        executor.load(library)
    executor.load(codegen.compile_library([POKE], AVX2).data)
    executor.close()


def with_pointers(target: targets.Target) -> bytes:
    """A library with a pointer to a symbol of its own that is visible outside, and one to a symbol that is not."""
    ir = """
      @visible = global i64 1
      @private = internal global i64 2
      @to_visible = global ptr @visible
      @to_private = global ptr @private
      define i64 @keep() { %v = load i64, ptr @private  store i64 %v, ptr @private  ret i64 %v }
    """
    code = backend.emit_object(backend.parse(ir, target), target)
    return codegen.link([codegen.Object("pointers", code, "")], target)


@pytest.mark.parametrize("target", targets.quick_targets(), ids=lambda target: target.name)
def test_pointers_in_a_library_point_to_where_it_was_placed(target: targets.Target) -> None:
    image = elf.place(with_pointers(target), 1 << 30)

    def word_at(address: int) -> int:
        (home,) = [part for part in image.segments if part.address <= address < part.address + len(part.data)]
        return struct.unpack_from("<Q", home.data, address - home.address)[0]

    assert word_at(image.symbols["to_visible"]) == image.symbols["visible"]
    assert word_at(word_at(image.symbols["to_private"])) == 2


def test_an_unknown_relocation_is_refused() -> None:
    library = bytearray(with_pointers(targets.get("aarch64-neon")))
    struct.pack_into("<H", library, 18, 243)  # pretend that it is for RISC-V
    with pytest.raises(ValueError, match=r"relocation type \d+ for riscv64 is not known"):
        elf.place(bytes(library), 1 << 20)


# ---- memory ----


def test_blocks_never_touch() -> None:
    space = AddressSpace()
    blocks = [space.allocate(nbytes, 64, guard=nbytes % 2 == 0) for nbytes in (0, 1, 4096, 5000, 1 << 20)]
    edges = sorted((block.first, block.first + block.mapped) for block in blocks)
    assert all(later[0] - earlier[1] >= PAGE for earlier, later in itertools.pairwise(edges))


@pytest.mark.parametrize("align", [1, 4, 64, 4096, 1 << 21])
@pytest.mark.parametrize("guard", [False, True])
def test_blocks_are_aligned(align: int, guard: bool) -> None:
    space = AddressSpace()
    space.allocate(100, 1, guard)
    block = space.allocate(100, align, guard)
    assert block.address % align == 0
    assert block.first <= block.address and block.address + 100 <= block.first + block.mapped


def test_freeing_what_was_never_allocated_is_an_error() -> None:
    with pytest.raises(KeyError):
        AddressSpace().release(4096)


def test_the_end_of_the_address_space_is_an_error_and_not_a_wrap() -> None:
    space = AddressSpace()
    with pytest.raises(MemoryError, match="address space are used up"):
        for _ in range(4):
            space.reserve(60 << 30)
