"""The isolated executor: kernels run in a process of their own, where a crash is a finding and not the end.

It speaks the byte stream of native_src/runner.c to whatever serves it: the runner itself, the runner under qemu-user,
the Bochs worker, a board over ssh. Memory and libraries are placed from this side, so requests are queued and one
example (allocate, write, run, read) is one round trip.
"""

from __future__ import annotations

import re
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from anvil.errors import EmulatorError, InputError, KernelError
from anvil.runtime import elf
from anvil.runtime.address_space import PAGE, AddressSpace, round_up
from anvil.runtime.channel import Channel, Died, Fault
from anvil.runtime.executor import POISON

DEFAULT_TIMEOUT = 30.0  # seconds a run may take when the caller does not say,
ROW_TIMEOUT = 1.0  # and for each of its rows: a whole model under an emulator, on a busy machine, is slow but no hang
_GRACE = 30.0  # seconds without a byte moving before the process is given up, beyond what a run may take
_REQUEST = struct.Struct("<5Q")
_MAP, _UNMAP, _WRITE, _PROTECT, _READ, _RUN = range(1, 7)
_KERNEL_SIGNAL, _NO_MEMORY = 1, 2
_CODE_BOUNDARY = 1 << 16  # libraries are linked for pages of up to 64 KiB
#: What an emulator says when the fault is its own. qemu: a C assertion, one of its library's, a failure of its code
#: generator; Bochs: an instruction that it is known to refuse.
_EMULATOR_FAULT = re.compile(
    r"qemu-\w+: .*: Assertion .* failed|ERROR:.*assertion failed|tcg fatal error|bochs: cannot run"
)
_SMALL = 1 << 16  # bytes; larger data is sent from the caller's memory before write() returns


@dataclass(frozen=True)
class Prepared:
    """A program to be run many times; the arrays are the caller's."""

    program: np.ndarray
    words: np.ndarray
    threads: int


@dataclass
class RunnerExecutor:
    """Implements :class:`anvil.runtime.executor.Executor` over a byte stream.

    ``connect`` starts the process, which runs code of ``machine``. After a :class:`KernelError` the next request starts
    another one: memory handed out before is gone (``generation`` has counted up), libraries and their symbols stay
    valid.
    """

    connect: Callable[[], Channel]
    description: str
    machine: str
    generation: int = 0
    _channel: Channel | None = None
    _limit: float = DEFAULT_TIMEOUT  # seconds, of the last run
    _space: AddressSpace = field(default_factory=AddressSpace)
    _images: list[elf.Image] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)

    def load(self, library: bytes) -> int:
        elf.require_machine(library, self.machine)
        base = self._space.reserve(elf.span(library), _CODE_BOUNDARY)
        image = elf.place(library, base)
        if self._channel is not None:
            self._send_image(self._channel, image)
        self._images.append(image)
        return len(self._images) - 1

    def symbol(self, library: int, name: str) -> int:
        symbols = self._images[library].symbols
        if name not in symbols:
            known = ", ".join(sorted(symbols))
            raise InputError(f"looking up a kernel: symbol={name!r} is not in library {library}; it has: {known}")
        self._names[symbols[name]] = name
        return symbols[name]

    def alloc(self, nbytes: int, *, align: int = 64, guard: bool = False) -> int:
        channel = self._connected()
        block = self._space.allocate(nbytes, align, guard)
        self._send(channel, _MAP, block.first, block.mapped, POISON)
        return block.address

    def free(self, address: int) -> None:
        block = self._space.release(address)
        if block is not None and self._channel is not None:
            self._send(self._channel, _UNMAP, block.first, block.mapped)

    def write(self, address: int, data: memoryview | bytes, *, readonly: bool = False) -> None:
        channel = self._connected()
        view = memoryview(data).cast("B")
        block = self._space.block_at(address)
        if block is None:
            raise InputError(f"writing {len(view)} bytes: address={address:#x} is not in any block of this executor")
        if block.readonly:
            self._protect(channel, block.first, block.mapped, elf.PROT_READ | elf.PROT_WRITE)
        self._send(channel, _WRITE, address, len(view), payload=view)
        if readonly:
            self._protect(channel, block.first, block.mapped, elf.PROT_READ)
        block.readonly = readonly

    def read(self, address: int, nbytes: int) -> bytes:
        channel = self._connected()
        self._send(channel, _READ, address, nbytes)
        return bytes(self._exchange([nbytes], _GRACE, None)[0])

    def run(self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, timeout: float | None = None) -> None:
        self.run_and_read(program, words, (), threads=threads, timeout=timeout)

    def run_and_read(
        self,
        program: np.ndarray,
        words: np.ndarray,
        reads: Sequence[tuple[int, int]],
        *,
        threads: int = 1,
        timeout: float | None = None,
    ) -> list[bytes]:
        if any(nbytes < 0 for _, nbytes in reads):  # refused before anything is sent: answers would be left over
            raise InputError(
                f"running a program: {[nbytes for _, nbytes in reads]} bytes to read, expected none negative"
            )
        channel = self._connected()
        limit = self._limit = DEFAULT_TIMEOUT + ROW_TIMEOUT * len(program) if timeout is None else timeout
        payload = _as_words(program, "program") + _as_words(words, "words")
        milliseconds = max(1, round(limit * 1000))
        self._send(channel, _RUN, len(program), words.size, threads, milliseconds, payload=payload)
        for address, nbytes in reads:
            self._send(channel, _READ, address, nbytes)
        answers = self._exchange([0, *(nbytes for _, nbytes in reads)], limit + _GRACE, program)
        return [bytes(answer) for answer in answers[1:]]

    def prepare(
        self, program: np.ndarray, words: np.ndarray, *, threads: int = 1, marks: np.ndarray | None = None
    ) -> Prepared:
        return Prepared(program, words, threads)

    def run_prepared(self, prepared: Prepared, *, timeout: float | None = None) -> None:
        self.run(prepared.program, prepared.words, threads=prepared.threads, timeout=timeout)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connected(self) -> Channel:
        if self._channel is None:
            self._channel = self.connect()
            for image in self._images:
                self._send_image(self._channel, image)
        return self._channel

    def _send_image(self, channel: Channel, image: elf.Image) -> None:
        self._send(channel, _MAP, image.base, round_up(image.span, PAGE), 0)
        for segment in image.segments:
            self._send(channel, _WRITE, segment.address, len(segment.data), payload=segment.data)
        for segment in image.segments:
            first, last = segment.address // PAGE * PAGE, round_up(segment.address + segment.span, PAGE)
            self._protect(channel, first, last - first, segment.protection)

    def _protect(self, channel: Channel, first: int, nbytes: int, protection: int) -> None:
        self._send(channel, _PROTECT, first, nbytes, protection)

    def _send(self, channel: Channel, *numbers: int, payload: bytes | memoryview = b"") -> None:
        header = _REQUEST.pack(*numbers, *[0] * (5 - len(numbers)))
        if isinstance(payload, memoryview) and len(payload) <= _SMALL:
            payload = bytes(payload)
        try:
            channel.send(header)
            channel.send(payload)
            if len(payload) > _SMALL:
                channel.exchange((), _GRACE)
        except (Fault, Died) as error:
            raise self._lost(error, None) from None

    def _exchange(self, sizes: Sequence[int], patience: float, program: np.ndarray | None) -> list[bytearray]:
        assert self._channel is not None
        try:
            return self._channel.exchange(sizes, patience)
        except (Fault, Died) as error:
            raise self._lost(error, program) from None

    def _lost(self, error: Fault | Died, program: np.ndarray | None) -> KernelError | MemoryError:
        """Give the process up; returns what to tell the caller."""
        assert self._channel is not None
        self._channel.close()
        self._channel = None
        report = self._report(error, program)
        self._space.lose_all()
        self.generation += 1
        return report

    def _report(self, error: Fault | Died, program: np.ndarray | None) -> KernelError | MemoryError:
        if isinstance(error, Died):
            kind = EmulatorError if _EMULATOR_FAULT.search(str(error)) else KernelError
            return kind(f"running kernels on {self.description}: the process was lost: {error}")
        if error.kind == _NO_MEMORY:
            return MemoryError(
                f"allocating {error.address} bytes on {self.description}: no memory, or the address is taken"
            )
        if error.kind != _KERNEL_SIGNAL:
            return KernelError(f"running kernels on {self.description}: request refused at {error.address:#x}")
        name = signal.Signals(error.signal).name
        row = error.row if error.row >= 0 else None
        where = "outside any kernel"
        if row is not None:
            function = self._names.get(int(program[row][0]), "unknown") if program is not None else "unknown"
            where = f"in row {row} ({function.removesuffix('__packed')}), thread {error.tid}"
        if error.signal == signal.SIGALRM:
            late = f"hang: no return within {self._limit:g} s {where}, on {self.description}"
            return KernelError(late, signal=name, row=row)
        what = ""
        if error.signal in (signal.SIGSEGV, signal.SIGBUS):
            what = f" at address {error.address:#x}, {self._space.describe(error.address)}"
        return KernelError(f"{name} {where}{what}, on {self.description}", signal=name, row=row)


def _as_words(array: np.ndarray, name: str) -> bytes:
    if array.dtype != np.int64:
        raise InputError(f"running a program: {name} has dtype={array.dtype}; expected int64")
    return array.tobytes()
