"""One scalar operation, on scalars or on the lanes of vectors."""

from __future__ import annotations

from anvil.kernels import halves, mathlib
from anvil.kernels.dsl import Val, cast, splat
from anvil.mlir import ir

_HALVES = ("f16", "bf16")
_WIDEN = {"f16": halves.widen_f16, "bf16": halves.widen_bf16}
_NARROW = {"f16": halves.narrow_f16, "bf16": halves.narrow_bf16}
_CONVERSIONS = ("arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi")


def apply(op: ir.Operation, arguments: list[Val], converts_f16: bool) -> Val:
    """``op`` on scalars or vectors: a clone, or our own arithmetic where targets differ or have only a library call.

    ``converts_f16`` is all that a target says of it (:class:`anvil.targets.Target`), so others share its code.
    """
    lanes = next((value.lanes for value in arguments if value.lanes is not None), None)
    if lanes is not None:
        arguments = [splat(value, lanes) if value.lanes is None else value for value in arguments]
    element = op.results[0].type
    dialect, _, name = op.name.partition(".")
    if op.name == "arith.remf":
        return Val(mathlib.emit("fmod", *(value.ssa for value in arguments)))
    if dialect == "math" and mathlib.known(name):
        return Val(mathlib.emit(name, *(value.ssa for value in arguments)))
    if op.name in _CONVERSIONS and str(arguments[0].element) in _HALVES:
        arguments = [to_f32(arguments[0], converts_f16)]
        if str(element) == "f32":
            return arguments[0]
    if op.name in _CONVERSIONS and str(element) in _HALVES:
        wide = arguments[0] if str(arguments[0].element) == "f32" else _clone(op, arguments, "f32")
        return from_f32(wide, str(element), converts_f16)
    return _clone(op, arguments, str(element))


def _clone(op: ir.Operation, arguments: list[Val], element: str) -> Val:
    """The operation with results of type ``element``, as many as the arguments have lanes."""
    kind, lanes = ir.Type.parse(element), arguments[0].lanes if arguments else None
    kind = kind if lanes is None else ir.VectorType.get([lanes], kind)
    attributes = {attribute: op.attributes[attribute] for attribute in op.attributes}
    return Val(ir.Operation.create(op.name, [kind], [value.ssa for value in arguments], attributes).result)


def to_f32(value: Val, converts_f16: bool) -> Val:
    """A 16-bit float as f32. All its other conversions go through f32 too, as in PyTorch, whatever passes have made
    of two conversions in a row."""
    half = str(value.element)
    return cast(value, "f32") if half == "f16" and converts_f16 else _WIDEN[half](value)


def from_f32(value: Val, half: str, converts_f16: bool) -> Val:
    return cast(value, half) if half == "f16" and converts_f16 else _NARROW[half](value)
