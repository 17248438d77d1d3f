"""x86-64 with AVX-512, at four levels. Native where the host has it, otherwise in the Bochs CPU.

``base`` is F, BW, DQ, VL, CD (x86-64-v4, since Skylake-SP), ``vnni`` adds the 8-bit dot product (Ice Lake). The target
without a suffix has BF16 as well: Cooper Lake, Sapphire Rapids, Zen 4 and later. ``fp16`` adds half-precision
arithmetic (Sapphire Rapids). LLVM prefers 256-bit vectors on most of these CPUs; the attribute asks for the full width.
"""

from anvil.targets.base import Target

_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")


def _avx512(suffix: str, features: str, flags: tuple[str, ...], bochs: str) -> Target:
    return Target(
        name=f"x86_64-avx512{suffix}",
        isa="x86_64-avx512",
        triple="x86_64-unknown-linux-gnu",
        cpu="x86-64-v4",
        features=features,
        machine="x86_64",
        vector_bits=512,
        registers=32,
        gemm_tile=(14, 2),
        host_flags=_FLAGS + flags,
        bochs=bochs,
        attributes=(("prefer-vector-width", "512"),),
        quick=not suffix,
    )


TARGETS = (
    _avx512("", "+avx512vnni,+avx512bf16", ("avx512_vnni", "avx512_bf16"), "sapphire_rapids"),
    _avx512("-base", "", (), "corei7_skylake_x"),
    _avx512("-vnni", "+avx512vnni", ("avx512_vnni",), "corei7_icelake_u"),
    _avx512(
        "-fp16",
        "+avx512vnni,+avx512bf16,+avx512fp16",
        ("avx512_vnni", "avx512_bf16", "avx512_fp16"),
        "sapphire_rapids",
    ),
)
