"""Ops that put tensors side by side: each is written where it belongs in the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from anvil.lower.generic.emission import emit_copy
from anvil.lower.sizes import same, simplify
from anvil.runtime.plan import Size, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten


def _cat(low: Lowering, node: Node) -> View:
    """Along dimension ``dim``. As in PyTorch, an empty vector joins anything."""
    sources, *rest = node.args
    result = low.allocate(node, low.shape(node), low.dtype(node), order=low.order(node))
    dim = (rest[0] if rest else node.kwargs.get("dim", 0)) % len(result.sizes)
    start: Size = 0
    for source in sources:
        tensor = low.tensor(source)
        if len(tensor.shape) == 1 and len(result.sizes) > 1 and same(tensor.shape[0], 0):
            continue
        offset = simplify(result.offset + start * result.strides[dim])
        emit_copy(low, node, tensor, View(result.buffer, offset, tensor.shape, result.strides))
        start = simplify(start + tensor.shape[dim])
    return result


LOWERINGS = {aten.cat.default: _cat}
