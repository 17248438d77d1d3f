"""Named pass pipelines, as data. Every stage can be printed, executed and replaced.

A pipeline is a sequence of stages; a stage is a name and the MLIR passes it runs. Stages only ever lower, so running
the whole pipeline again over the module after any stage ends in the same code: that is how a stage is executed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One named step: ``passes`` is a comma-separated list of passes over ``builtin.module``."""

    name: str
    passes: str


@dataclass(frozen=True)
class Pipeline:
    """A named sequence of stages."""

    name: str
    stages: tuple[Stage, ...]


KERNEL_TO_LLVM = Pipeline(
    name="kernel-to-llvm",
    stages=(
        Stage("canonicalize", "canonicalize,cse"),
        Stage("lower-vectors", "convert-vector-to-scf,lower-affine"),
        Stage("lower-loops", "convert-scf-to-cf,expand-strided-metadata,lower-affine"),
        Stage(
            "llvm-dialect",
            # arith-expand after the first arith lowering: it must only see what LLVM has no instruction for
            # (ceildiv, floordiv), never maximumf, whose expansion loses the sign of zero.
            "convert-vector-to-llvm,convert-math-to-llvm,finalize-memref-to-llvm,"
            "convert-arith-to-llvm,arith-expand,convert-arith-to-llvm,"
            "convert-index-to-llvm,convert-cf-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts,"
            "canonicalize,cse",
        ),
    ),
)
