"""RISC-V RV64GC with the vector extension 1.0, at four register lengths (VLEN, in bits).

``zvl*b`` promises the compiler the length it schedules for; longer registers run the same code. Tails and masked-off
elements are filled with ones in the emulator, so that code that relies on them being kept is seen to be wrong;
``kept`` runs code for the same CPU where they are kept. ``zvfh`` has vectors of f16.
"""

from anvil.targets.base import Target

_ONES = "rvv_ta_all_1s=true,rvv_ma_all_1s=true"


def _rvv(vlen: int, gemm_tile: tuple[int, int], suffix: str = "", features: str = "", emulated: str = _ONES) -> Target:
    return Target(
        name=f"riscv64-rvv-vlen{vlen}{suffix}",
        isa="riscv64-rvv",
        triple="riscv64-unknown-linux-gnu",
        cpu="generic-rv64",
        features=f"+m,+a,+f,+d,+c,+v,+zvl{vlen}b{features}",
        machine="riscv64",
        vector_bits=vlen,
        registers=32,
        gemm_tile=gemm_tile,
        emulator=("qemu-riscv64", "-cpu", f"rv64,v=true,vlen={vlen},elen=64,vext_spec=v1.0,{emulated}"),
        converts_f16=bool(features),
        quick=vlen < 512 and not suffix,
    )


_TILES = {128: (7, 4), 256: (14, 2), 512: (14, 1), 1024: (14, 1)}

TARGETS = (
    *(_rvv(vlen, tile) for vlen, tile in _TILES.items()),
    # An emulator that cannot switch Zvfh on and off by name (qemu before 8) refuses to start: then these do not run.
    *(_rvv(vlen, _TILES[vlen], "-zvfh", ",+zfh,+zvfh", f"{_ONES},zfh=true,zvfh=true") for vlen in (128, 256)),
    _rvv(256, _TILES[256], "-kept", emulated="rvv_ta_all_1s=false,rvv_ma_all_1s=false"),
)
