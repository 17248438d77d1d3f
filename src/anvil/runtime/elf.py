"""Places a shared object of kernels in an address space that this process does not share.

Kernel libraries are self-contained (``ld.lld --no-undefined``), so four relocation kinds per machine are all there are.
Raises ``ValueError`` on a file that is not such a library.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from anvil.errors import InputError

PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
# Relocation numbers by machine: word = base + addend, and word = symbol + addend.
_RELATIVE = {"x86_64": {8}, "aarch64": {1027}, "riscv64": {3}}
_SYMBOLIC = {"x86_64": {1, 6, 7}, "aarch64": {257, 1025, 1026}, "riscv64": {2, 5}}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 4, 5, 6, 7, 8, 23, 2


@dataclass(frozen=True)
class Segment:
    """Bytes to place, and the protection of the pages they lie on afterwards."""

    address: int
    data: bytes
    span: int  # bytes in memory; what ``data`` does not cover is zero
    protection: int


@dataclass(frozen=True)
class Image:
    """A library relocated to ``base``: its segments and the absolute addresses of its exported symbols."""

    base: int
    span: int
    segments: tuple[Segment, ...]
    symbols: dict[str, int]


def require_machine(library: bytes, machine: str) -> None:
    """Raise :class:`InputError` unless ``library`` was linked for ``machine`` (x86_64, aarch64, riscv64)."""
    own = _machine(library)
    if own != machine:
        raise InputError(
            f"loading a kernel library: it is for machine={own}, expected {machine}, where this executor runs; compile "
            "the kernels for a target of that machine"
        )


def span(library: bytes) -> int:
    """Bytes of address space ``library`` needs."""
    return max(header[3] + header[6] for header in _program_headers(library) if header[0] == _PT_LOAD)


def place(library: bytes, base: int) -> Image:
    """Relocate ``library`` to ``base`` (a multiple of 64 KiB)."""
    machine = _machine(library)
    headers = _program_headers(library)
    memory = bytearray(span(library))
    dynamic: dict[int, int] = {}
    for kind, _, offset, address, _, in_file, _, _ in headers:
        if kind == _PT_LOAD:
            memory[address : address + in_file] = library[offset : offset + in_file]
        elif kind == _PT_DYNAMIC:
            dynamic = dict(struct.iter_unpack("<QQ", library[offset : offset + in_file // 16 * 16]))
    symbols = _symbols(memory, dynamic)
    for table, size in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        start = dynamic.get(table, 0)
        for where, info, addend in struct.iter_unpack("<QQq", bytes(memory[start : start + dynamic.get(size, 0)])):
            kind, index = info & 0xFFFFFFFF, info >> 32
            if kind in _RELATIVE[machine]:
                value = base + addend
            elif kind in _SYMBOLIC[machine]:
                value = base + symbols[index][1] + addend
            else:
                raise ValueError(f"placing a kernel library: relocation type {kind} for {machine} is not known")
            struct.pack_into("<Q", memory, where, value)
    segments = tuple(
        Segment(base + address, bytes(memory[address : address + in_file]), in_memory, _protection(flags))
        for kind, flags, _, address, _, in_file, in_memory, _ in headers
        if kind == _PT_LOAD
    )
    exported = {name: base + value for name, value in symbols if name}
    return Image(base, len(memory), segments, exported)


def _machine(library: bytes) -> str:
    number = struct.unpack_from("<H", library, 18)[0] if library[:4] == b"\x7fELF" and len(library) >= 64 else None
    if number not in _MACHINES:
        raise ValueError(f"placing a kernel library: expected an ELF file for one of {sorted(_MACHINES.values())}")
    return _MACHINES[number]


def _program_headers(library: bytes) -> list[tuple[int, ...]]:
    """(type, flags, file offset, address, _, bytes in file, bytes in memory, alignment) of each header."""
    (offset,) = struct.unpack_from("<Q", library, 32)
    (count,) = struct.unpack_from("<H", library, 56)
    return list(struct.iter_unpack("<IIQQQQQQ", library[offset : offset + 56 * count]))


def _symbols(memory: bytearray, dynamic: dict[int, int]) -> list[tuple[str, int]]:
    """(name, value) by symbol index; the value of an undefined symbol is 0, and only index 0 is undefined."""
    (_, count) = struct.unpack_from("<II", memory, dynamic[_DT_HASH])
    found = []
    for index in range(count):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", memory, dynamic[_DT_SYMTAB] + 24 * index)
        start = dynamic[_DT_STRTAB] + name
        found.append((memory[start : memory.index(0, start)].decode(), value))
    return found


def _protection(flags: int) -> int:
    """ELF flags (1 execute, 2 write, 4 read) as mmap protection bits."""
    return (PROT_READ if flags & 4 else 0) | (PROT_WRITE if flags & 2 else 0) | (PROT_EXEC if flags & 1 else 0)
