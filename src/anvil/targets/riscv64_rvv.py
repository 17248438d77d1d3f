"""RISC-V RV64GC with the vector extension 1.0, at two register lengths (VLEN, in bits).

``zvl*b`` promises the compiler the length it schedules for; longer registers run the same code. Tails and masked-off
elements are filled with ones in the emulator, so that code that relies on them being kept is seen to be wrong.
"""

from anvil.targets.base import Target


def _rvv(vlen: int, gemm_tile: tuple[int, int]) -> Target:
    agnostic = "rvv_ta_all_1s=true,rvv_ma_all_1s=true"
    return Target(
        name=f"riscv64-rvv-vlen{vlen}",
        isa="riscv64-rvv",
        triple="riscv64-unknown-linux-gnu",
        cpu="generic-rv64",
        features=f"+m,+a,+f,+d,+c,+v,+zvl{vlen}b",
        machine="riscv64",
        vector_bits=vlen,
        registers=32,
        gemm_tile=gemm_tile,
        emulator=("qemu-riscv64", "-cpu", f"rv64,v=true,vlen={vlen},elen=64,vext_spec=v1.0,{agnostic}"),
        converts_f16=False,
    )


TARGETS = (_rvv(128, gemm_tile=(7, 4)), _rvv(256, gemm_tile=(14, 2)))
