"""Ops on rows: normalisation, gated activation, the largest element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from anvil import kernels
from anvil.graph import ops as _ops  # noqa: F401 (registers anvil::*)
from anvil.lower.named.linear import matrix_of
from anvil.lower.sizes import dense_strides, product
from anvil.runtime.plan import Scalar, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten, anvil = torch.ops.aten, torch.ops.anvil


def _rms_norm(low: Lowering, node: Node) -> View:
    x, weight, eps = node.args
    result = low.allocate(node, low.shape(node), low.dtype(node))
    arguments = [low.rows_of(x), low.with_inner_unit(weight), matrix_of(result.buffer, result.sizes)]
    low.emit(kernels.get("rms_norm").build(low.target), [*arguments, Scalar(float(eps), "f32")], node)
    return result


def _swiglu(low: Lowering, node: Node) -> View:
    gate, up = node.args
    result = low.allocate(node, low.shape(node), low.dtype(node))
    arguments = [low.rows_of(gate), low.rows_of(up), matrix_of(result.buffer, result.sizes)]
    low.emit(kernels.get("swiglu").build(low.target), arguments, node)
    return result


def _argmax(low: Lowering, node: Node) -> View:
    x = node.args[0]
    result = low.allocate(node, low.shape(node), "i64")
    count = product(result.sizes)
    flat = View(result.buffer, 0, (count,), dense_strides((count,)))
    low.emit(kernels.get("argmax").build(low.target), [low.rows_of(x), flat], node)
    return result


def _along_last_dim(low: Lowering, node: Node) -> bool:
    x, *rest = node.args
    dim = rest[0] if rest else node.kwargs.get("dim")
    rank = len(low.shape(x))
    return dim is not None and rank > 0 and dim % rank == rank - 1 and low.dtype(x) == "f32"


LOWERINGS = {
    anvil.rms_norm.default: _rms_norm,
    anvil.swiglu.default: _swiglu,
    aten.argmax.default: _argmax,
}
APPLIES = {aten.argmax.default: _along_last_dim}
