"""Linear layers and embeddings over the model's own weights, packed as the quantisation mode wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from anvil import kernels
from anvil.lower.sizes import dense_strides, product
from anvil.quant import QuantMode
from anvil.quant.choice import Role
from anvil.runtime.plan import View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten


def _packed(low: Lowering, weight: Node, mode: QuantMode) -> list[View]:
    """The buffers of a packed weight [N, K], in the order kernels take them."""
    outputs, inputs = low.shape(weight)
    pieces = mode.tensors(outputs, inputs, low.target)
    return [low.weight(weight, piece.shape, piece.dtype, piece.layout) for piece in pieces]


def _is_weight(low: Lowering, node: object) -> bool:
    return isinstance(node, Node) and node.op == "placeholder" and node.name in low.program.params


def _linear(low: Lowering, node: Node) -> View:
    """x [..., K] times the weight [N, K], transposed, plus the bias [N]: rows are all leading dimensions."""
    x, weight, *rest = node.args
    bias = rest[0] if rest else node.kwargs.get("bias")
    result, matrix = _result(low, node)
    biases = [] if bias is None else [low.with_inner_unit(bias)]
    mode = _mode(low, weight)
    kernel = mode.build_linear(low.target, bias is not None)
    low.emit(kernel, [*_activations(low, node, x, mode), *_packed(low, weight, mode), *biases, matrix], node)
    return result


def _activations(low: Lowering, node: Node, x: Node, mode: QuantMode) -> list[View]:
    """What a matrix kernel multiplies weights with: the rows of x, or what the mode rounds them to, once for all."""
    rows = low.rows_of(x)
    if mode.activations is None:
        return [rows]
    if (x, mode.name) not in low.rounded:
        count, inputs = rows.sizes
        pieces = [
            low.allocate(node, (count, *sizes), dtype, temp=True) for dtype, sizes in mode.activations.pieces(inputs)
        ]
        low.emit(mode.activations.build(low.target), [rows, *pieces], node)
        low.rounded[x, mode.name] = pieces
    return low.rounded[x, mode.name]


def _embedding(low: Lowering, node: Node) -> View:
    """Rows of the table [V, D]: out of the packed weight, but that of f32 which no linear layer shares lies plain."""
    weight, ids, *_ = node.args
    result, matrix = _result(low, node)
    where = low.vector_of(ids)
    mode = _mode(low, weight)
    if mode.name != "fp32" or _shared_with_linear(low, weight):
        low.emit(mode.build_embedding(low.target), [where, *_packed(low, weight, mode), matrix], node)
    else:
        low.emit(kernels.get("embedding").build(low.target), [where, low.view(weight), matrix], node)
    return result


def _mode(low: Lowering, weight: Node) -> QuantMode:
    """The quantisation mode of a weight."""
    return low.choice.mode(weight.name, _role(low, weight))


def _role(low: Lowering, weight: Node) -> Role:
    """What a weight is: a table is one of embeddings, or has the shape of one and no linear layer reads its results.

    The shape alone would also fit a layer inside a model whose width happens to be the size of the vocabulary.
    """
    tensor = low.program.params[weight.name]
    tables = [node.args[0] for node in low.nodes if node.target is aten.embedding.default]
    if any(low.program.params.get(table.name) is tensor for table in tables):
        return "tied" if _shared_with_linear(low, weight) else "table"
    uses = [user for user in weight.users if user.target is aten.linear.default]
    shaped = low.shape(weight) in [low.shape(table) for table in tables]
    return "table" if shaped and not any(map(_feeds_linear, uses)) else "matrix"


def _feeds_linear(node: Node) -> bool:
    """Whether a linear layer comes anywhere after ``node``."""
    seen, waiting = set(), list(node.users)
    while waiting:
        user = waiting.pop()
        if user.target is aten.linear.default:
            return True
        if user not in seen:
            seen.add(user)
            waiting.extend(user.users)
    return False


def _shared_with_linear(low: Lowering, weight: Node) -> bool:
    tensor = low.program.params[weight.name]
    return any(
        node.target is aten.linear.default
        and _is_weight(low, node.args[1])
        and low.program.params[node.args[1].name] is tensor
        for node in low.nodes
    )


def _result(low: Lowering, node: Node) -> tuple[View, View]:
    """New memory for the result [..., N], and the same as a matrix."""
    shape = low.shape(node)
    result = low.allocate(node, shape, low.dtype(node))
    return result, matrix_of(result.buffer, shape)


def matrix_of(buffer: str, shape: Sequence) -> View:
    """A dense buffer of ``shape`` as [rows, last dimension]."""
    sizes = (product(shape[:-1]), shape[-1])
    return View(buffer, 0, sizes, dense_strides(sizes))


def _over_f32_weight(low: Lowering, node: Node, position: int) -> bool:
    weight = node.args[position]
    return _is_weight(low, weight) and low.dtype(node) == "f32" and len(low.shape(weight)) == 2


LOWERINGS = {aten.linear.default: _linear, aten.embedding.default: _embedding}
APPLIES = {
    aten.linear.default: lambda low, node: _over_f32_weight(low, node, 1),
    aten.embedding.default: lambda low, node: _over_f32_weight(low, node, 0),
}
