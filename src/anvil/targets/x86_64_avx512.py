"""x86-64 with AVX-512 F, BW, DQ, VL, CD (x86-64-v4), VNNI and BF16: Cooper Lake, Sapphire Rapids, Zen 4 and later.

Native where the host has it, otherwise in the Bochs CPU. LLVM prefers 256-bit vectors on most of these CPUs; the
function attribute asks for the full width.
"""

from anvil.targets.base import Target

TARGETS = (
    Target(
        name="x86_64-avx512",
        isa="x86_64-avx512",
        triple="x86_64-unknown-linux-gnu",
        cpu="x86-64-v4",
        features="+avx512vnni,+avx512bf16",
        machine="x86_64",
        vector_bits=512,
        registers=32,
        gemm_tile=(14, 2),
        host_flags=(
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512cd",
            "avx512_vnni",
            "avx512_bf16",
        ),
        bochs="sapphire_rapids",
        attributes=(("prefer-vector-width", "512"),),
    ),
)
