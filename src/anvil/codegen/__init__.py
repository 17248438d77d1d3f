"""Code generation: kernels (MLIR) to objects and shared objects, for every target, through a cache."""

from anvil.codegen.build import Library, Object, compile_kernel, compile_library, link
from anvil.codegen.inspect import assembly, inner_loops, spills
from anvil.codegen.lowering import LoweringError
from anvil.codegen.stages import DumpedStage, dump_stages

__all__ = [
    "DumpedStage",
    "Library",
    "LoweringError",
    "Object",
    "assembly",
    "compile_kernel",
    "compile_library",
    "dump_stages",
    "inner_loops",
    "link",
    "spills",
]
