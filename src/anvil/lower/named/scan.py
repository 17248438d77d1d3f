"""Running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch.fx import Node

from anvil.graph.rewrite import argument
from anvil.kernels import scan
from anvil.lower.generic.emission import emit_copy
from anvil.lower.values import Tensor
from anvil.runtime.plan import View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten
_WIDE = {"f16": "f32", "bf16": "f32", "ui8": "i8", "i1": "i8"}


def _running(combine: Literal["sum", "prod"]) -> Callable[[Lowering, Node], View]:
    def lower(low: Lowering, node: Node) -> View:
        shape, dtype = low.shape(node), low.dtype(node)
        wide = _WIDE.get(dtype, dtype)
        tensor = low.tensor(node.args[0])
        if not shape:
            result = low.allocate(node, shape, dtype)
            emit_copy(low, node, tensor, result)
            return result
        dim = argument(node, "dim") % len(shape)
        source = _in_memory(low, node, tensor, wide)
        target = low.allocate(node, shape, wide, temp=wide != dtype)
        low.emit(scan.build(low.target, wide, len(shape), combine), [_last(source, dim), _last(target, dim)], node)
        if wide == dtype:
            return target
        result = low.allocate(node, shape, dtype)
        emit_copy(low, node, Tensor(target, wide), result)
        return result

    return lower


def _in_memory(low: Lowering, node: Node, tensor: Tensor, dtype: str) -> View:
    """The operand in the type that is summed: as it lies, or converted."""
    if tensor.generator is None and tensor.dtype == dtype:
        return tensor.view
    target = low.allocate(node, tensor.shape, dtype, temp=True)
    emit_copy(low, node, tensor, target)
    return target


def _last(view: View, dim: int) -> View:
    """``view`` with dimension ``dim`` last."""
    order = [*(i for i in range(len(view.sizes)) if i != dim), dim]
    return View(view.buffer, view.offset, tuple(view.sizes[i] for i in order), tuple(view.strides[i] for i in order))


LOWERINGS = {aten.cumsum.default: _running("sum"), aten.cumprod.default: _running("prod")}
