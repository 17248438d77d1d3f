"""One scalar operation, on scalars or on the lanes of vectors."""

from __future__ import annotations

from collections.abc import Callable

from anvil.kernels import mathlib
from anvil.kernels.dsl import Val, splat
from anvil.lower.generic import halves
from anvil.mlir import ir
from anvil.targets.base import Target

_CONVERSIONS: dict[tuple[str, str], Callable[[Val], Val]] = {
    ("arith.extf", "bf16"): halves.widen_bf16,
    ("arith.truncf", "bf16"): halves.narrow_bf16,
    ("arith.extf", "f16"): halves.widen_f16,
    ("arith.truncf", "f16"): halves.narrow_f16,
}


def apply(op: ir.Operation, arguments: list[Val], target: Target) -> Val:
    """``op`` on scalars or vectors: a clone, or our own arithmetic where targets differ or have only a library call.

    Raises NotImplementedError for an elementary function that has no implementation in the operand's precision.
    """
    lanes = next((value.lanes for value in arguments if value.lanes is not None), None)
    if lanes is not None:
        arguments = [splat(value, lanes) if value.lanes is None else value for value in arguments]
    element = op.results[0].type
    dialect, _, name = op.name.partition(".")
    if dialect == "math" and name in mathlib.functions():
        if str(element) == "f64":
            raise NotImplementedError(f"{name} of f64: there is no implementation in double precision")
        return Val(mathlib.emit(name, arguments[0].ssa))
    if op.name in ("arith.extf", "arith.truncf"):
        half = str(element if name == "truncf" else arguments[0].element)
        if half == "bf16" or (half == "f16" and not target.converts_f16):
            return _CONVERSIONS[op.name, half](arguments[0])
    kind = element if lanes is None else ir.VectorType.get([lanes], element)
    attributes = {attribute: op.attributes[attribute] for attribute in op.attributes}
    return Val(ir.Operation.create(op.name, [kind], [value.ssa for value in arguments], attributes).result)
