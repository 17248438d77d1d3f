"""Scatters and sorts: operands as flat or row-wise dense memory, results as the kernels leave them; and operands that
are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from anvil import kernels
from anvil.errors import ValueRangeError
from anvil.graph import data_ops as _ops  # noqa: F401 (registers anvil::scatter, sort_rows, checked, sized)
from anvil.graph.describe import source_line
from anvil.lower.checks.flags import emit_flag
from anvil.lower.generic.emission import emit_copy
from anvil.lower.sizes import dense_strides, product
from anvil.lower.values import Tensor
from anvil.runtime.plan import Requirement, Size, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering


def _scatter(low: Lowering, node: Node) -> View:
    x, place, src, reduce = node.args
    shape, dtype = low.shape(node), low.dtype(node)
    result = low.allocate(node, shape, dtype)
    emit_copy(low, node, low.tensor(x), result)
    kernel = kernels.get("scatter").build(low.target, dtype, reduce)
    flat = _shaped(result, (product(shape),))
    low.emit(kernel, [low.vector_of(place), low.vector_of(src), flat], node)
    return result


def _sort_rows(low: Lowering, node: Node) -> dict[int, Tensor]:
    x, descending = node.args
    shape, dtype = low.shape(node), low.dtype(node)
    rows, size = product(shape[:-1]), shape[-1]
    values, indices = low.allocate(node, shape, dtype), low.allocate(node, shape, "i64")
    work = low.allocate(node, (rows, 2, size), "i64", temp=True)
    kernel = kernels.get("sort").build(low.target, dtype, bool(descending))
    matrices = [_shaped(view, (rows, size)) for view in (values, indices)]
    low.emit(kernel, [low.rows_of(x), *matrices, work], node)
    return {0: Tensor(values, dtype), 1: Tensor(indices, "i64")}


def _checked(low: Lowering, node: Node) -> Tensor:
    x, wrong, message = node.args
    flags = lambda region, operand: region.load(operand)  # noqa: E731
    emit_flag(low, node, wrong, flags, f"{message}, at {source_line(node)}", ValueRangeError)  # type: ignore[arg-type]
    return low.tensor(x)  # type: ignore[arg-type]


def _sized(low: Lowering, node: Node) -> Tensor:
    x, size, message = node.args
    low.requirements.append(Requirement(low.size(size), 0, f"{message}, at {source_line(node)}"))
    return low.tensor(x)  # type: ignore[arg-type]


def _shaped(view: View, shape: tuple[Size, ...]) -> View:
    """Dense memory in another shape."""
    return View(view.buffer, view.offset, shape, dense_strides(shape))


LOWERINGS: dict[Any, Any] = {
    torch.ops.anvil.scatter.default: _scatter,
    torch.ops.anvil.sort_rows.default: _sort_rows,
    torch.ops.anvil.checked.default: _checked,
    torch.ops.anvil.sized.default: _sized,
}
