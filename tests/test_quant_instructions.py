"""Quantised kernels use what their ISA is for, and die on a CPU that has less."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from kernel_bench import KernelBench, poison
from test_quant_kernels import multiplied, normal, packed

from anvil import codegen, quant, targets
from anvil.codegen.contract import Contract, breaches
from anvil.errors import KernelError
from anvil.runtime import open_executor, status

SCALAR_X86 = ("imul", "movsb", "movzb", "cvtsi2ss", "vcvtsi2ss", "vmulss", "vfmadd231ss", "vfmadd213ss", "vpinsr")
SCALAR_ARM = ("madd", "smulh", "ldrsb", "fmadd", "smaddl")
SCALAR_RISCV = ("mul", "fmadd", "fcvt")

#: (mode, target): what the hot loops of its matrix product hold.
CONTRACTS = {
    ("w8a8", "x86_64-avx2"): Contract("vpmaddubsw", least=10, forbidden=SCALAR_X86, share=0.15),
    ("w8a8", "x86_64-avx512-base"): Contract("vpmaddubsw", least=16, forbidden=SCALAR_X86, share=0.15),
    ("w8a8", "x86_64-avx512-vnni"): Contract("vpdpbusd", least=28, forbidden=SCALAR_X86, share=0.4),
    ("w8a8", "x86_64-avx512"): Contract("vpdpbusd", least=28, forbidden=SCALAR_X86, share=0.4),
    ("w8a8", "x86_64-avx512-fp16"): Contract("vpdpbusd", least=28, forbidden=SCALAR_X86, share=0.4),
    ("w8a8", "aarch64-neon-base"): Contract("saddw", least=12, forbidden=SCALAR_ARM, share=0.1),
    ("w8a8", "aarch64-neon"): Contract("sdot", least=20, forbidden=SCALAR_ARM, share=0.35),
    ("w8a8", "aarch64-neon-i8mm"): Contract("smmla", least=16, forbidden=SCALAR_ARM, share=0.4),
    ("w8a8", "aarch64-sve128"): Contract("sdot", least=20, forbidden=SCALAR_ARM, share=0.35),
    ("w8a8", "aarch64-sve256"): Contract("sdot", least=16, forbidden=SCALAR_ARM, share=0.25),
    ("w8a8", "aarch64-sve512"): Contract("sdot", least=14, forbidden=SCALAR_ARM, share=0.25),
    ("w8a8", "riscv64-rvv-vlen128"): Contract("vwmacc", least=6, forbidden=SCALAR_RISCV, share=0.08),
    ("w8a8", "riscv64-rvv-vlen256"): Contract("vwmacc", least=8, forbidden=SCALAR_RISCV, share=0.08),
    ("w8a8", "riscv64-rvv-vlen512"): Contract("vwmacc", least=8, forbidden=SCALAR_RISCV, share=0.08),
    ("w8a8", "riscv64-rvv-vlen1024"): Contract("vwmacc", least=8, forbidden=SCALAR_RISCV, share=0.08),
    ("q4_0", "x86_64-avx2"): Contract("vpshufb", least=16, forbidden=("vpsrad",), share=0.1),
    ("w4-g32", "x86_64-avx2"): Contract("vfmadd", least=32, forbidden=("cvtsi2ss", "vmulss", "vpinsr")),
}

#: Targets, and a CPU that has all of it but the instruction in question: (target, what to change).
LESSER = {
    "vpdpbusd on Skylake": ("x86_64-avx512-vnni", {"bochs": "corei7_skylake_x"}),
    "vpmaddubsw on Nehalem": ("x86_64-avx2", {"bochs": "corei5_lynnfield_750"}),
    "sdot on Cortex-A53": ("aarch64-neon", {"emulator": ("qemu-aarch64", "-cpu", "cortex-a53")}),
    "smmla on Neoverse N1": ("aarch64-neon-i8mm", {"emulator": ("qemu-aarch64", "-cpu", "neoverse-n1")}),
    "SVE on Neoverse N1": ("aarch64-sve256", {"emulator": ("qemu-aarch64", "-cpu", "neoverse-n1")}),
    "vwmacc on RV64GC": ("riscv64-rvv-vlen128", {"emulator": ("qemu-riscv64", "-cpu", "rv64,v=false")}),
}


@pytest.mark.parametrize(("mode", "target"), CONTRACTS)
def test_hot_loops_hold_the_instruction(mode: str, target: str) -> None:
    own = targets.get(target)
    text = codegen.assembly(quant.get(mode).build_linear(own, False), own)
    assert not breaches(text, CONTRACTS[mode, target])


def test_a_contract_is_broken_by_another_instruction() -> None:
    """The same mode where the instruction is missing: the kernel is right, and the contract says what it lacks."""
    own = targets.get("x86_64-avx512-base")
    text = codegen.assembly(quant.get("w8a8").build_linear(own, False), own)
    assert breaches(text, Contract("vpdpbusd")) == ["vpdpbusd is in 0 innermost loops, expected at least 2"]


def test_a_contract_is_broken_by_spills_and_scalar_arithmetic() -> None:
    """More accumulators than registers, and a scalar multiplication, put into one kernel."""
    own = targets.get("x86_64-avx2")
    tight = dataclasses.replace(own, gemm_tile=(14, 2), registers=64)
    text = codegen.assembly(quant.get("w8a8").build_linear(tight, False), tight)
    contract = Contract("vpmaddubsw", forbidden=("vpabsb",), share=0.5)
    found = breaches(text, contract)
    assert any("spills" in line for line in found)
    assert any("holds vpabsb" in line for line in found)
    assert any("instructions in loop" in line for line in found)


def run_on(target: targets.Target) -> np.ndarray:
    """A product of several rows in w8a8, in an emulator."""
    mode = quant.get("w8a8")
    bench = KernelBench(target)
    bench.executor.close()
    bench.executor = open_executor(target, isolated=True, force="bochs" if target.bochs else "qemu")
    try:
        return multiplied(bench, mode, normal(3, 64), packed(mode, normal(17, 64), target), poison(3, 17))
    finally:
        bench.executor.close()


@pytest.mark.parametrize(("target", "change"), LESSER.values(), ids=LESSER.keys())
def test_the_same_code_dies_on_a_cpu_without_the_instruction(target: str, change: dict) -> None:
    lesser = dataclasses.replace(targets.get(target), **change)
    here = status(lesser, isolated=True, force="bochs" if lesser.bochs else "qemu")
    if not here.runs:
        pytest.skip(here.reason)
    with pytest.raises(KernelError) as caught:
        run_on(lesser)
    assert caught.value.signal == "SIGILL"
