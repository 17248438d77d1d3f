"""AArch64 with Advanced SIMD, at three levels.

``base`` is Armv8.0 (Cortex-A53 and -A72). The target without a suffix is Armv8.2 with fp16 arithmetic and the 8-bit dot
product (Cortex-A76, Neoverse N1). ``i8mm`` is Armv8.6 with matrix products of int8 and bf16.
"""

from anvil.targets.base import Target


def _neon(suffix: str, cpu: str, features: str, flags: tuple[str, ...], emulated: str) -> Target:
    return Target(
        name=f"aarch64-neon{suffix}",
        isa="aarch64-neon",
        triple="aarch64-unknown-linux-gnu",
        cpu=cpu,
        features=features,
        machine="aarch64",
        vector_bits=128,
        registers=32,
        gemm_tile=(5, 4),  # 8 x 3 needs 35 registers: LLVM keeps every element of x in one of its own, and spills
        host_flags=("asimd", *flags),
        emulator=("qemu-aarch64", "-cpu", emulated),
        quick=not suffix,
    )


TARGETS = (
    _neon("", "neoverse-n1", "+dotprod,+fullfp16", ("asimdhp", "asimddp"), "neoverse-n1"),
    _neon("-base", "cortex-a72", "", (), "cortex-a72"),
    _neon(
        "-i8mm",
        "neoverse-n1",
        "+dotprod,+fullfp16,+i8mm,+bf16",
        ("asimdhp", "asimddp", "i8mm", "bf16"),
        "max,sve=off",
    ),
)
