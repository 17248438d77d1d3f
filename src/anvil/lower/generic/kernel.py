"""From a loop nest to a kernel, stage by stage: linalg on tensors, simplified, scheduled."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from operator import and_

from anvil import mlir
from anvil.kernels.base import Kernel
from anvil.kernels.define import define
from anvil.kernels.dsl import LANES, Ref, Val, eq
from anvil.kernels.flow import if_else
from anvil.lower.generic import linalg_builder
from anvil.lower.generic.flatten import Flat, flatten
from anvil.lower.generic.nest import Nest
from anvil.lower.generic.operands import Operand, memrefs, scalar_arguments
from anvil.lower.generic.schedule import Scheduler
from anvil.mlir import ir, memref

_NAME = "region"


def generate(nest: Nest, converts_f16: bool, prefix: str) -> Kernel:
    """The kernel of ``nest`` for targets that do or do not convert f16: inputs, outputs, scalars. Its name ends in a
    hash of its code: same code, same name."""
    operands = memrefs(nest)

    def body(*arguments: Ref | Val) -> None:
        *values, tid, nthreads = arguments
        _versions(nest, converts_f16, operands, _flat(nest), values, tid, nthreads)

    edges = [] if nest.vector is None else [(f"d{nest.vector}", LANES)]
    kernel = define(_NAME, [operand.argument() for operand in operands] + scalar_arguments(nest), body, edges=edges)
    name = f"{prefix}_{hashlib.sha256(repr((kernel.params, kernel.mlir)).encode()).hexdigest()[:12]}"
    return replace(kernel, name=name, mlir=kernel.mlir.replace(f"@{_NAME}(", f"@{name}("))


def stages(nest: Nest, converts_f16: bool) -> Iterator[tuple[str, str]]:
    """(stage name, MLIR text after it): ``linalg`` and ``simplified`` on tensors, ``scheduled`` as code generation
    takes it."""
    with mlir.context(), mlir.Location.unknown():
        module = linalg_builder.build(nest)
        yield "linalg", str(module)
        mlir.run_passes(module, linalg_builder.SIMPLIFY)
        yield "simplified", str(module)
    yield "scheduled", generate(nest, converts_f16, _NAME).mlir


def _flat(nest: Nest) -> Flat:
    module = linalg_builder.build(nest)
    mlir.run_passes(module, linalg_builder.SIMPLIFY)
    kinds = linalg_builder.signature(nest)
    read = [() if nest.steps[step].kind == "gather" else nest.steps[step].loops for step in kinds.inputs]
    written = [nest.steps[step].loops for step in kinds.outputs]
    return flatten(module, [*read, *written, *(None for _ in kinds.scalars), *kinds.loops])


def _versions(
    nest: Nest, converts_f16: bool, operands: list[Operand], flat: Flat, values: list, tid: Val, nthreads: Val
) -> None:
    """Where an innermost stride is known at run time only: one version for strides of 1, one for any."""
    loose = {i for i, operand in enumerate(operands) if operand.access == "any"}
    if not loose:
        Scheduler(nest, operands, flat.stores, values, converts_f16).run(tid, nthreads)
        return
    dense = functools.reduce(and_, [eq(_innermost_stride(values[i]), 1) for i in sorted(loose)])
    with if_else(dense) as (then, otherwise):
        with then:
            unit = [operand.as_unit() if i in loose else operand for i, operand in enumerate(operands)]
            seen = [_as_unit(value, unit[i]) if i in loose else value for i, value in enumerate(values)]
            Scheduler(nest, unit, flat.stores, seen, converts_f16).run(tid, nthreads)
        with otherwise:
            Scheduler(nest, operands, flat.stores, values, converts_f16).run(tid, nthreads)


def _innermost_stride(ref: Ref) -> Val:
    return Val(memref.ExtractStridedMetadataOp(ref.ssa).strides[-1])


def _as_unit(ref: Ref, operand: Operand) -> Ref:
    """The same memory, its innermost stride known to be 1. (A plain cast would be folded into the loads and lost.)"""
    base, offset, *rest = memref.ExtractStridedMetadataOp(ref.ssa).results
    rank = len(operand.loops)
    sizes, strides = rest[:rank], rest[rank:]
    dynamic = ir.ShapedType.get_dynamic_size()
    kind = ir.Type.parse(operand.argument().type)
    return Ref(
        memref.reinterpret_cast(
            kind, base, [offset], sizes, strides[:-1], [dynamic], [dynamic] * rank, [dynamic] * (rank - 1) + [1]
        )
    )
