"""LLVM IR -> optimised IR -> machine code, in process, for every ISA."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from anvil.targets.base import Target

OPT_LEVEL = 3


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _machine(target: Target) -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=OPT_LEVEL,
        reloc="pic",
        codemodel="small" if target.machine != "riscv64" else "medium",
        abiname="lp64d" if target.machine == "riscv64" else "",
    )


def parse(ir: str, target: Target) -> llvm.ModuleRef:
    """Verified module of LLVM IR text, set to ``target``. Raises ``RuntimeError`` (from LLVM) on malformed text."""
    module = llvm.parse_assembly(ir)
    module.triple = target.triple
    module.data_layout = str(_machine(target).target_data)
    module.verify()
    return module


def optimise(ir: str, target: Target, *, exports: tuple[str, ...]) -> llvm.ModuleRef:
    """Parse, verify and optimise LLVM IR text; every defined function outside ``exports`` becomes internal.

    Floating point is never reassociated: no fast-math flag is added here and the vectorisers respect its absence.
    Kernels arrive with their vector shape chosen, so superword vectorisation is off (it undoes register tiling).
    """
    machine = _machine(target)
    module = parse(ir, target)
    for function in module.functions:
        if function.is_declaration:
            continue
        function.add_function_attribute("nounwind")
        if function.name not in exports:
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=OPT_LEVEL)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def emit_object(module: llvm.ModuleRef, target: Target) -> bytes:
    """A relocatable ELF object."""
    return _machine(target).emit_object(module)


def emit_assembly(module: llvm.ModuleRef, target: Target) -> str:
    """Assembly text with the code generator's comments (loops, spills)."""
    machine = _machine(target)
    machine.set_asm_verbosity(True)
    return machine.emit_assembly(module)
