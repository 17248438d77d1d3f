"""Code generation: kernels (MLIR) to objects and shared objects, for every target, through a cache."""

from anvil.codegen.build import Library, Object, compile_kernel, compile_library, link
from anvil.codegen.lowering import LoweringError

__all__ = ["Library", "LoweringError", "Object", "compile_kernel", "compile_library", "link"]
