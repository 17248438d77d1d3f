"""Every stage of a kernel's compilation, printable and executable: where a miscompilation is found by bisection.

The MLIR stages are executed by the rest of the pipeline and LLVM's code generator without LLVM's optimiser, the last
one by what really ships. The first stage whose result differs from its predecessor's is where the error came in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from anvil.codegen import backend, build, lowering, wrapper
from anvil.kernels.base import Kernel
from anvil.targets.base import Target


@dataclass(frozen=True)
class DumpedStage:
    """A kernel after one stage: MLIR text, or LLVM IR text with the packed entry included."""

    name: str
    language: Literal["mlir", "llvm"]
    text: str
    kernel: Kernel
    target: Target

    def compile(self) -> build.Library:
        """A library that computes what the kernel is at this stage; same symbol and calling convention as ever."""
        lower = self.language == "mlir"
        ir = build.llvm_ir(replace(self.kernel, mlir=self.text), self.target) if lower else self.text
        module = backend.parse(ir, self.target)
        code = build.Object(self.kernel.name, backend.emit_object(module, self.target), key=self.name)
        return build.library_of(build.link([code], self.target), [self.kernel.name])


def dump_stages(kernel: Kernel, target: Target) -> list[DumpedStage]:
    """The stages of compiling ``kernel`` for ``target``, first to last: ``source``, the pipeline's stages by name,
    ``llvm-ir``, ``optimised``."""
    stages = [DumpedStage(name, "mlir", text, kernel, target) for name, text in lowering.stages(kernel)]
    ir = build.llvm_ir(kernel, target)
    optimised = str(backend.optimise(ir, target, exports=(wrapper.symbol(kernel.name),)))
    stages.append(DumpedStage("llvm-ir", "llvm", ir, kernel, target))
    stages.append(DumpedStage("optimised", "llvm", optimised, kernel, target))
    return stages
