"""Ops that compute each element from the operands' elements at the same place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import NumberType, OptionalType, TensorType

from anvil.dtypes import mlir_name
from anvil.lower.generic.call import PROMOTE, Call, as_num, is_operand
from anvil.lower.generic.num import Num
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.runtime.plan import Size


@dataclass(frozen=True)
class Pointwise:
    """``body`` takes the op's arguments in the schema's order and returns the element.

    Tensors and numbers reach it as Nums of the type PyTorch computes in: their common type, under ``promote``, which
    may be a function of the call's flags by name.
    Arguments in ``raw`` keep their own type and do not promote; numbers in ``plain`` promote but stay Python numbers;
    everything else (flags, None) passes unchanged.
    The result is converted to the op's result type. ``cheap`` bodies take about as long as reading an operand.
    """

    body: Callable[..., Num]
    promote: PROMOTE | Callable[..., PROMOTE] = PROMOTE.DEFAULT
    raw: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    cheap: bool = False

    def __call__(self, region: Region, call: Call) -> Value:
        names = _value_arguments(call)
        promoted = [name for name in names if name not in self.raw and name != "alpha"]
        compute = call.compute_dtype(promoted, self._promotion(call, names)) if promoted else call.dtype
        slots = {name: value for name in names if is_operand(value := _operand(region, call[name]))}

        def element(*elements: Num) -> Num:
            given = dict(zip(slots, elements, strict=True))
            arguments: list[Any] = []
            for name, value in call.arguments.items():
                if name in names and name not in (*self.raw, *self.plain):
                    arguments.append(as_num(given.get(name, value), compute))
                elif name not in _IGNORED:
                    arguments.append(given.get(name, value))
            return self.body(*arguments).to(call.dtype)

        return region.map(element, list(slots.values()), call.shape, call.dtype, cheap=self.cheap)

    def _promotion(self, call: Call, values: list[str]) -> PROMOTE:
        if isinstance(self.promote, PROMOTE):
            return self.promote
        return self.promote(**{name: value for name, value in call.arguments.items() if name not in values})


_IGNORED = ("memory_format", "layout", "device", "pin_memory", "non_blocking", "dtype", "implicit", "copy")


def _value_arguments(call: Call) -> list[str]:
    """Names of the arguments that are values: tensors and numbers."""
    schema = call.node.target._schema  # type: ignore[union-attr]
    return [parameter.name for parameter in schema.arguments if _is_value(parameter.type)]


def _is_value(kind: Any) -> bool:
    if isinstance(kind, OptionalType):
        kind = kind.getElementType()
    return isinstance(kind, (TensorType, NumberType))


def _operand(region: Region, value: Any) -> Operand | Any:
    """A tensor, or a size known at bind time as a value of the region."""
    if is_operand(value) or value is None or isinstance(value, (int, float)):
        return value
    return _size_operand(region, value)


def _size_operand(region: Region, size: Size) -> Value:
    return region.scalar(size, mlir_name(torch.int64))


def promoting(kind: PROMOTE, bodies: dict[Any, Callable[..., Num]], *, cheap: bool = False) -> dict[Any, Pointwise]:
    """The same promotion for a whole table of bodies."""
    return {op: Pointwise(body, kind, cheap=cheap) for op, body in bodies.items()}
