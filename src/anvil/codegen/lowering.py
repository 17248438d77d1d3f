"""MLIR kernel -> LLVM IR text, stage by stage."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from anvil import mlir
from anvil.dtypes import memory_name
from anvil.kernels.base import Kernel, Param
from anvil.pipelines import KERNEL_TO_LLVM, Pipeline
from anvil.targets.base import Target

Attributes = tuple[tuple[str, str], ...]
_REMEMBERED = 256  # kernels: one after the other, targets whose attributes are equal ask for the same text


class LoweringError(ValueError):
    """A kernel's MLIR is malformed or disagrees with its declared parameters: a bug in the kernel generator."""


def to_llvm_ir(kernel: Kernel, target: Target, pipeline: Pipeline = KERNEL_TO_LLVM) -> str:
    """LLVM IR text of ``kernel``, its functions carrying ``target``'s attributes. Raises :class:`LoweringError`."""
    return _translated(kernel, pipeline, target.attributes, target.scalable_times)


@functools.lru_cache(maxsize=_REMEMBERED)
def _translated(kernel: Kernel, pipeline: Pipeline, attributes: Attributes, scalable_times: int) -> str:
    with mlir.context(), mlir.Location.unknown():
        module = _parse(kernel)
        for stage in pipeline.stages:
            _run_stage(module, kernel, stage.name, stage.passes)
        _check_lowered(module, kernel)
        _set_attributes(module, attributes, scalable_times)
        return mlir.to_llvm_ir(module)


def stages(kernel: Kernel, pipeline: Pipeline = KERNEL_TO_LLVM) -> Iterator[tuple[str, str]]:
    """(stage name, MLIR text after it), starting with ``source``. Raises :class:`LoweringError`."""
    with mlir.context(), mlir.Location.unknown():
        module = _parse(kernel)
        yield "source", str(module)
        for stage in pipeline.stages:
            _run_stage(module, kernel, stage.name, stage.passes)
            yield stage.name, str(module)


def _parse(kernel: Kernel) -> mlir.Module:
    try:
        module = mlir.Module.parse(kernel.mlir)
    except mlir.MLIRError as error:
        raise LoweringError(f"parsing kernel {kernel.name!r}: not valid MLIR:\n{error}") from error
    _check_signature(kernel, module)
    return module


def _run_stage(module: mlir.Module, kernel: Kernel, name: str, passes: str) -> None:
    try:
        mlir.run_passes(module, passes)
    except mlir.MLIRError as error:
        raise LoweringError(f"lowering kernel {kernel.name!r}: stage {name!r} failed:\n{error}") from error


def _check_lowered(module: mlir.Module, kernel: Kernel) -> None:
    """The translator to LLVM IR crashes on an operation it does not know, so none may be left."""
    left: set[str] = set()

    def note(op: mlir.ir.Operation) -> mlir.ir.WalkResult:
        if not op.name.startswith("llvm.") and op.name != "builtin.module":
            left.add(op.name)
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(note, mlir.ir.WalkOrder.PRE_ORDER)
    if left:
        raise LoweringError(f"lowering kernel {kernel.name!r}: nothing lowers {', '.join(sorted(left))} to LLVM")


def _check_signature(kernel: Kernel, module: mlir.Module) -> None:
    """The wrapper trusts the declared parameters; a mismatch would read the wrong words at run time."""
    for op in module.body.operations:
        if isinstance(op, mlir.func.FuncOp) and op.name.value == kernel.name:
            actual = [str(kind) for kind in op.type.inputs]
            break
        if op.operation.name == "llvm.func" and _symbol(op) == kernel.name:
            return  # a later stage fed back in: its types were checked when it was first lowered
    else:
        raise LoweringError(f"kernel {kernel.name!r}: its module has no function @{kernel.name}")
    expected = [_shape(param) for param in kernel.params] + ["index", "index"]
    found = [_shape_of(text) for text in actual]
    if found != expected:
        raise LoweringError(
            f"kernel {kernel.name!r}: @{kernel.name} takes {actual}; its parameters promise {expected} "
            "(memrefs as dtype x rank, then tid and nthreads)"
        )


def _symbol(op: object) -> str:
    return mlir.ir.StringAttr(op.operation.attributes["sym_name"]).value  # type: ignore[attr-defined]


def _shape(param: Param) -> str:
    return param.dtype if param.rank < 0 else f"{memory_name(param.dtype)} x {param.rank}"


def _shape_of(type_text: str) -> str:
    if not type_text.startswith("memref<"):
        return type_text
    kind = mlir.ir.MemRefType(mlir.ir.Type.parse(type_text))
    return f"{memory_name(str(kind.element_type))} x {kind.rank}"


def _set_attributes(module: mlir.Module, attributes: Attributes, scalable_times: int) -> None:
    pairs = [mlir.ir.ArrayAttr.get([mlir.ir.StringAttr.get(part) for part in pair]) for pair in attributes]
    for op in module.body.operations:
        if op.operation.name == "llvm.func" and len(op.operation.regions[0].blocks) > 0:
            if pairs:
                op.operation.attributes["passthrough"] = mlir.ir.ArrayAttr.get(pairs)
            if scalable_times:
                text = f"#llvm.vscale_range<minRange = {scalable_times} : i32, maxRange = {scalable_times} : i32>"
                op.operation.attributes["vscale_range"] = mlir.ir.Attribute.parse(text)
