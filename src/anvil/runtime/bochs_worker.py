"""Serves the byte stream of native_src/runner.c from the Bochs CPU emulator: no operating system, no boot.

Run as a program: ``bochs_worker.py MODEL SHIM``. It imports nothing of anvil, so that it starts quickly. Guest
virtual addresses are guest physical addresses; page tables carry the protections, so guard pages and read-only
weights work as on a real machine. An exception ends the process with the report the runner would have made.
"""

from __future__ import annotations

import array
import bisect
import ctypes
import importlib.util
import mmap
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

PAGE = 4096
TABLE_SPAN = 512 * PAGE  # bytes one lowest-level page table maps
REQUEST, FAULT, WORD = struct.Struct("<5Q"), struct.Struct("<QQQqq"), struct.Struct("<Q")
MAP, UNMAP, WRITE, PROTECT, READ, RUN = range(1, 7)
KERNEL_SIGNAL, NO_MEMORY, BAD_REQUEST = 1, 2, 3
PROT_WRITE, PROT_EXEC = 2, 4

# Guest memory of the worker's own, below where the client places anything.
TABLES, TABLES_BYTES = 1 << 20, 256 << 20  # page tables: the first is the root, the rest are taken in turn
HALT_CODE = TABLES + TABLES_BYTES  # where kernels return to
STACK, STACK_BYTES = HALT_CODE + 2 * PAGE, 8 << 20
PRESENT, WRITABLE, NO_EXECUTE = 1, 2, 1 << 63

# x86 exceptions as the signals Linux turns them into; general protection (13) and page faults (14) are SIGSEGV.
SIGNALS = {
    0: signal.SIGFPE,
    3: signal.SIGTRAP,
    6: signal.SIGILL,
    16: signal.SIGFPE,
    17: signal.SIGBUS,
    19: signal.SIGFPE,
}

# Gathers and scatters in the EVEX encoding: prefix, opcode map 0F 38, their opcodes; and the bytes one may take.
EVEX, MAP_0F38, GATHER_OPCODES, GATHER_BYTES = 0x62, 2, {*range(0x90, 0x94), *range(0xA0, 0xA4)}, (7, 8, 11)

_KEPT: list[ctypes.Array[ctypes.c_char]] = []


class Memory:
    """The guest's memory: host mappings, and the four levels of page tables that lead to them."""

    def __init__(self, physical: Any) -> None:
        self._physical = physical  # bochscpu.memory
        self._starts: list[int] = []
        self._mappings: dict[int, mmap.mmap] = {}
        self._tables = self._insert(TABLES, TABLES_BYTES)
        self._next_table = TABLES + PAGE
        self.map(HALT_CODE, PAGE, 0)
        self.write(HALT_CODE, b"\xf4")  # hlt
        self.protect(HALT_CODE, PAGE, PROT_EXEC)
        self.map(STACK, STACK_BYTES, 0)

    def map(self, address: int, nbytes: int, fill: int) -> None:
        mapping = self._insert(address, nbytes)
        if fill:
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), fill, nbytes)
        self.protect(address, nbytes, PROT_WRITE)

    def unmap(self, address: int, nbytes: int) -> None:
        self._set_entries(address, nbytes, None)
        for page in range(address, address + nbytes, PAGE):
            self._physical.page_remove(page)
        self._starts.remove(address)
        del self._mappings[address]

    def protect(self, address: int, nbytes: int, protection: int) -> None:
        flags = PRESENT
        flags |= WRITABLE if protection & PROT_WRITE else 0
        flags |= 0 if protection & PROT_EXEC else NO_EXECUTE
        self._set_entries(address, nbytes, flags)

    def write(self, address: int, data: bytes) -> None:
        start = self._start_of(address)
        self._mappings[start][address - start : address - start + len(data)] = data

    def read(self, address: int, nbytes: int) -> bytes:
        start = self._start_of(address)
        return self._mappings[start][address - start : address - start + nbytes]

    def _start_of(self, address: int) -> int:
        return self._starts[bisect.bisect_right(self._starts, address) - 1]

    def _insert(self, address: int, nbytes: int) -> mmap.mmap:
        mapping = mmap.mmap(-1, nbytes)
        host = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        for offset in range(0, nbytes, PAGE):
            self._physical.page_insert(address + offset, host + offset)
        bisect.insort(self._starts, address)
        self._mappings[address] = mapping
        return mapping

    def _set_entries(self, address: int, nbytes: int, flags: int | None) -> None:
        """Make the pages' table entries present with ``flags``, or absent."""
        at, end = address, address + nbytes
        while at < end:
            stop = min(end, (at // TABLE_SPAN + 1) * TABLE_SPAN)  # what one table maps is set at once
            pages = range(at, stop, PAGE)
            values = array.array("Q", [0] * len(pages) if flags is None else [page | flags for page in pages])
            start = self._entry(at) - TABLES
            self._tables[start : start + 8 * len(pages)] = values.tobytes()
            at = stop

    def _entry(self, address: int) -> int:
        """Guest address of the lowest-level table entry for ``address``; makes missing tables."""
        table = TABLES
        for shift in (39, 30, 21):
            entry = table + 8 * (address >> shift & 511)
            (value,) = WORD.unpack_from(self._tables, entry - TABLES)
            if not value & PRESENT:
                value = self._next_table | PRESENT | WRITABLE
                self._next_table += PAGE
                WORD.pack_into(self._tables, entry - TABLES, value)
            table = value & ~(PAGE - 1)
        return table + 8 * (address >> 12 & 511)


class Machine:
    """One Bochs CPU in 64-bit mode, and the way its faults are reported."""

    def __init__(self, bochscpu: Any, shim: ctypes.CDLL, output: int) -> None:
        self._bochscpu, self._shim, self._output = bochscpu, shim, output
        self._session = bochscpu.Session()
        self._session.missing_page_handler = self._on_missing_page
        self._hook = bochscpu.Hook()
        self._hook.hlt = lambda session, cpu: session.stop()
        self._hook.exception = self._on_exception
        self._hang = ctypes.create_string_buffer(FAULT.size)
        self._position = (-1, -1)
        self.memory = Memory(bochscpu.memory)

    def run(self, rows: list[tuple[int, int]], words: int, threads: int, milliseconds: int) -> None:
        """Call each (function, first word) of ``rows`` for every thread; ``words`` is the guest address of word 0."""
        self._shim.shim_alarm(milliseconds, self._output, self._hang, FAULT.size)
        for row, (function, first_word) in enumerate(rows):
            for tid in range(threads):
                self._position = (row, tid)
                self._hang.raw = FAULT.pack(KERNEL_SIGNAL, signal.SIGALRM, 0, row, tid)
                self._call(function, words + 8 * first_word, tid, threads)
        self._shim.shim_alarm(0, self._output, self._hang, FAULT.size)
        self._position = (-1, -1)

    def report(self, kind: int, number: int, address: int) -> NoReturn:
        os.write(self._output, FAULT.pack(kind, number, address, *self._position))
        os._exit(0)

    def _call(self, function: int, *arguments: int) -> None:
        state = self._initial_state()
        top = STACK + STACK_BYTES - 64
        self.memory.write(top - 8, WORD.pack(HALT_CODE))  # the return address
        state.rsp, state.rip = top - 8, function
        state.rdi, state.rsi, state.rdx = arguments
        self._session.cpu.set_state(state)  # also empties the translation cache: protections may have changed
        self._session.run([self._hook])

    def _initial_state(self) -> Any:
        state = self._bochscpu.State()
        state.cr0 = 0x80010033  # paging, write protection also for the supervisor, protected mode
        state.cr3 = TABLES
        state.cr4 = 0x40630  # physical address extension, SSE, vector state enabled
        state.efer = 0xD01  # 64-bit mode, no-execute pages
        state.xcr0 = 0xE7  # x87, SSE, AVX, AVX-512 state
        state.rflags, state.mxcsr, state.fpcw, state.fptw = 2, 0x1F80, 0x37F, 0xFFFF
        state.cs, state.tr, state.ldtr = self._segment(8, 0xA09B), self._segment(24, 0x8B), self._segment(0, 0x82)
        for name in ("ds", "es", "ss", "fs", "gs"):
            setattr(state, name, self._segment(16, 0xC093))
        return state

    def _segment(self, selector: int, attributes: int) -> Any:
        segment = self._bochscpu.Segment()
        segment.present, segment.selector, segment.attr = True, selector, attributes
        segment.base, segment.limit = 0, 0xFFFFFFFF
        return segment

    def _on_exception(self, session: Any, cpu: int, vector: int, error: int) -> NoReturn:
        if SIGNALS.get(vector) == signal.SIGILL and self._is_high_gather(session.cpu.rip):
            os.write(2, b"bochs: cannot run a gather or scatter whose index is in a vector register from 16 on\n")
            os._exit(1)
        address = session.cpu.cr2 if vector == 14 else 0
        self.report(KERNEL_SIGNAL, SIGNALS.get(vector, signal.SIGSEGV), address)

    def _is_high_gather(self, end: int) -> bool:
        """Whether the instruction that ends at ``end`` is one that Bochs takes for an invalid one, and no CPU does: a
        gather or scatter whose index is in a vector register from 16 on (its bit is stored inverted)."""
        for length in GATHER_BYTES:
            code = self.memory.read(end - length, 6)
            if len(code) < 6:  # before the code begins
                continue
            prefix, first, _, third, opcode, modes = code
            vsib = prefix == EVEX and first & 7 == MAP_0F38 and opcode in GATHER_OPCODES and modes & 7 == 4
            if vsib and not third & 8:
                return True
        return False

    def _on_missing_page(self, address: int) -> NoReturn:
        self.report(BAD_REQUEST, 0, address)


class Server:
    """Reads requests, writes answers."""

    def __init__(self, machine: Machine, source: Any, output: int) -> None:
        self._machine, self._source, self._output = machine, source, output
        self._job = (0, 0)  # guest address and bytes of the words of the last run
        self._next_job = 1 << 34

    def serve(self) -> None:
        memory = self._machine.memory
        while True:
            operation, a, b, c, d = REQUEST.unpack(self._take(REQUEST.size))
            if operation == MAP:
                memory.map(a, b, c)
            elif operation == UNMAP:
                memory.unmap(a, b)
            elif operation == WRITE:
                memory.write(a, self._take(b))
            elif operation == PROTECT:
                memory.protect(a, b, c)
            elif operation == READ:
                self._answer(memory.read(a, b))
            elif operation == RUN:
                rows = list(struct.iter_unpack("<QQ", self._take(16 * a)))
                self._machine.run(rows, self._place(self._take(8 * b)), c, d)
                self._answer(b"")
            else:
                self._machine.report(BAD_REQUEST, 0, operation)

    def _place(self, words: bytes) -> int:
        """Put the argument words into guest memory; returns their address."""
        address, room = self._job
        if len(words) > room:
            if room:
                self._machine.memory.unmap(address, room)
            address, room = self._next_job, -(-len(words) // PAGE) * PAGE
            self._next_job += room + PAGE
            self._machine.memory.map(address, room, 0)
            self._job = (address, room)
        self._machine.memory.write(address, words)
        return address

    def _take(self, nbytes: int) -> bytes:
        data = self._source.read(nbytes)
        if len(data) < nbytes:
            os._exit(0)  # the client has closed its end
        return data

    def _answer(self, payload: bytes) -> None:
        data = memoryview(bytes(WORD.size) + payload)
        while data:
            data = data[os.write(self._output, data) :]


def load_bochs(model: str, shim_path: str) -> tuple[Any, ctypes.CDLL]:
    """The bochscpu package, set to create CPUs of ``model``, and the shim."""
    spec = importlib.util.find_spec("bochscpu")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the bochscpu package is not installed")
    extension = next(Path(spec.submodule_search_locations[0]).glob("_bochscpu.*.so"))
    factory = f"create_{model}_cpuid"
    shim = ctypes.CDLL(shim_path, ctypes.RTLD_GLOBAL)
    # The shim keeps pointers to these strings, so they are C buffers that nobody frees.
    for text in (str(extension), f"_Z{len(factory)}{factory}P8BX_CPU_C"):
        _KEPT.append(ctypes.create_string_buffer(text.encode()))
    shim.shim_choose_model(*_KEPT)
    shim.shim_alarm.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64]
    import bochscpu
    import bochscpu.memory

    return bochscpu, shim


def main(model: str, shim_path: str) -> None:
    output = os.dup(1)
    os.dup2(2, 1)  # what the emulator prints must not mix with answers
    bochscpu, shim = load_bochs(model, shim_path)
    with os.fdopen(os.dup(0), "rb", buffering=1 << 20) as source:
        Server(Machine(bochscpu, shim, output), source, output).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
