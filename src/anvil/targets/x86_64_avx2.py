"""x86-64 with AVX2 and FMA (x86-64-v3): every server and desktop since 2013. Native on x86-64 hosts."""

from anvil.targets.base import Target

TARGETS = (
    Target(
        name="x86_64-avx2",
        isa="x86_64-avx2",
        triple="x86_64-unknown-linux-gnu",
        cpu="x86-64-v3",
        features="",
        machine="x86_64",
        vector_bits=256,
        registers=16,
        gemm_tile=(6, 2),
        host_flags=("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"),
    ),
)
