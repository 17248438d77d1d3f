"""What anvil knows of one CPU target, as data. One file per ISA in this package holds its ``TARGETS``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One CPU model that kernels are generated for.

    ``vector_bits`` is the width kernels are scheduled for and ``registers`` the number of vector registers;
    ``gemm_tile`` is (rows, vectors) of accumulators held in registers by the matrix kernel.
    ``emulator`` is the command that runs a static ``machine`` binary on another host, where there is one.
    ``quick`` targets are those that a run checks which names none, unless its profile is thorough.
    """

    name: str
    isa: str
    triple: str
    cpu: str
    features: str
    machine: str  # as `uname -m` prints it: which runner binary, which linker
    vector_bits: int
    registers: int
    gemm_tile: tuple[int, int]
    host_flags: tuple[str, ...] = ()  # /proc/cpuinfo flags the host needs to run this in process
    emulator: tuple[str, ...] = ()
    bochs: str = ""  # CPU model of the Bochs emulator that runs it, where there is one
    attributes: tuple[tuple[str, str], ...] = ()  # LLVM function attributes
    scalable_bits: int = 0  # length of scalable vectors (SVE) that code may count on; 0: it uses none
    converts_f16: bool = True  # has instructions that convert between f16 and f32
    quick: bool = True

    def lanes(self, bits: int = 32) -> int:
        """Elements of ``bits`` bits in one vector register."""
        return self.vector_bits // bits

    @property
    def scalable_times(self) -> int:
        """Length of scalable vectors in units of 128 bits, as LLVM counts (vscale)."""
        return self.scalable_bits // 128

    def has(self, feature: str) -> bool:
        """Whether an LLVM feature ("avx512vnni") is named in ``features``."""
        return f"+{feature}" in self.features.split(",")
