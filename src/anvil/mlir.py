"""The only module that imports the MLIR bindings; everything else takes MLIR from here.

Whichever wheel provides them (today ``xtc-mlir-python-bindings``, upstream MLIR 22.1), replacing it is a change of
this file. ``context()`` is the one way to get a context, so that every module sees the same settings.
"""

from __future__ import annotations

import functools

from mlir import ir
from mlir.dialects import (
    arith,
    bufferization,
    func,
    linalg,
    llvm,
    math,
    memref,
    scf,
    tensor,
    transform,
    vector,
)
from mlir.dialects.llvm import translate_module_to_llvmir  # pyright: ignore[reportAttributeAccessIssue]
from mlir.ir import (
    Context,
    InsertionPoint,
    Location,
    MLIRError,  # pyright: ignore[reportAttributeAccessIssue]
    Module,
)
from mlir.passmanager import PassManager

VERSION = "22.1.8.4"

__all__ = [
    "VERSION",
    "Context",
    "InsertionPoint",
    "Location",
    "MLIRError",
    "Module",
    "PassManager",
    "arith",
    "bufferization",
    "context",
    "func",
    "ir",
    "linalg",
    "llvm",
    "math",
    "memref",
    "run_passes",
    "scf",
    "tensor",
    "to_llvm_ir",
    "transform",
    "vector",
]


@functools.cache
def context() -> Context:
    """The context of this process, with every upstream dialect (loading them takes 10 ms), single-threaded: kernels
    are small, and processes run in parallel."""
    fresh = Context()
    fresh.enable_multithreading(False)
    return fresh


def to_llvm_ir(module: Module) -> str:
    """LLVM IR text of a module that holds nothing but the LLVM dialect (it crashes the process on anything else)."""
    return translate_module_to_llvmir(module.operation)


def run_passes(module: Module, passes: str) -> None:
    """Run a comma-separated list of module passes over ``module`` in place; raises :class:`MLIRError`."""
    PassManager.parse(f"builtin.module({passes})", module.context).run(module.operation)
