"""AArch64 with the scalable vector extension at a known length: 128, 256 (Neoverse V1) and 512 bits (A64FX).

Code for one length runs on that length only, as LLVM lays fixed vectors into scalable registers. At 128 bits LLVM
prefers Advanced SIMD, which has the same registers, and takes SVE for masks and gathers.
"""

from anvil.targets.base import Target


def _sve(bits: int, gemm_tile: tuple[int, int]) -> Target:
    return Target(
        name=f"aarch64-sve{bits}",
        isa="aarch64-sve",
        triple="aarch64-unknown-linux-gnu",
        cpu="generic",
        features="+v8.4a,+sve,+dotprod,+fullfp16",
        machine="aarch64",
        vector_bits=bits,
        registers=32,
        gemm_tile=gemm_tile,
        # A host's vector length is not among its flags, so none runs this in process.
        host_flags=("sve", f"sve{bits}"),
        emulator=("qemu-aarch64", "-cpu", f"max,sve-max-vq={bits // 128}"),
        scalable_bits=bits,
        quick=False,
    )


TARGETS = (_sve(128, gemm_tile=(5, 4)), _sve(256, gemm_tile=(10, 2)), _sve(512, gemm_tile=(14, 1)))
