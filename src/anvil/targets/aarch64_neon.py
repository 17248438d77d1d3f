"""AArch64 with Advanced SIMD (Armv8.2: fp16 arithmetic and dot product, as on Cortex-A76 and Neoverse N1)."""

from anvil.targets.base import Target

TARGETS = (
    Target(
        name="aarch64-neon",
        isa="aarch64-neon",
        triple="aarch64-unknown-linux-gnu",
        cpu="neoverse-n1",
        features="",
        machine="aarch64",
        vector_bits=128,
        registers=32,
        gemm_tile=(5, 4),  # 8 x 3 needs 35 registers: LLVM keeps every element of x in one of its own, and spills
        host_flags=("asimd", "asimdhp", "asimddp"),
        emulator=("qemu-aarch64", "-cpu", "neoverse-n1"),
    ),
)
