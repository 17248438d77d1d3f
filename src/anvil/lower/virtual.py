"""Tensors that need not exist: each element follows from its position alone.

A function here gives the tensor as a view of positions with a generator, or None where its numbers are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from anvil.lower.generic.num import Num, const
from anvil.lower.sizes import dense_strides
from anvil.lower.values import Tensor
from anvil.runtime.plan import Size, View

if TYPE_CHECKING:
    from anvil.lower.context import Context

aten = torch.ops.aten


def arange(start: float | Size, step: float | Size, shape: tuple[Size, ...], dtype: str) -> Tensor:
    """start, start + step, ...; whole numbers walk positions themselves, so they may be symbolic."""
    if isinstance(start, float) or isinstance(step, float):

        def element(position: Num) -> Num:
            wide = "f64" if dtype == "f64" else "f32"
            return (position.to(wide) * const(step, wide) + const(start, wide)).to(dtype)  # type: ignore[arg-type]

        return Tensor(View("", 0, shape, dense_strides(shape)), dtype, element)
    return Tensor(View("", start, shape, (step,)), dtype, lambda position: position.to(dtype))


def full(value: float | Size, shape: tuple[Size, ...], dtype: str) -> Tensor:
    """The same number everywhere: every element is at the one position that stands for it."""
    still = (0,) * len(shape)
    if isinstance(value, (int, float)):
        number = value
        return Tensor(View("", 0, shape, still), dtype, lambda position: const(number, dtype))
    return Tensor(View("", value, shape, still), dtype, lambda position: position.to(dtype))


def _number(context: Context, value: Any) -> Any:
    return context.size(value) if isinstance(value, (Node, torch.SymInt)) else value


def _arange(context: Context, node: Node) -> Tensor:
    numbers = [_number(context, value) for value in node.args]
    start = numbers[0] if len(numbers) > 1 else 0
    step = numbers[2] if len(numbers) > 2 else 1
    return arange(start, step, context.shape(node), context.dtype(node))


def _filled_with(position: int) -> Callable[[Context, Node], Tensor]:
    def build(context: Context, node: Node) -> Tensor:
        return full(_number(context, node.args[position]), context.shape(node), context.dtype(node))

    return build


def _always(value: float) -> Callable[[Context, Node], Tensor]:
    return lambda context, node: full(value, context.shape(node), context.dtype(node))


VIRTUAL: dict[Any, Callable[[Context, Node], Tensor]] = {
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.full.default: _filled_with(1),
    aten.full_like.default: _filled_with(1),
    aten.fill.Scalar: _filled_with(1),
    aten.new_full.default: _filled_with(2),
    aten.scalar_tensor.default: _filled_with(0),
    aten.zeros.default: _always(0),
    aten.zeros_like.default: _always(0),
    aten.new_zeros.default: _always(0),
    aten.ones.default: _always(1),
    aten.ones_like.default: _always(1),
    aten.new_ones.default: _always(1),
    aten.empty.memory_format: _always(0),
    aten.empty_like.default: _always(0),
    aten.new_empty.default: _always(0),
}
