"""A mixture of experts: each row times the matrices of the experts it is sent to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from anvil import kernels
from anvil.graph import ops as _ops  # noqa: F401 (registers anvil::*)
from anvil.runtime.plan import View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering


def _expert_linear(low: Lowering, node: Node) -> View:
    x, weight, ids = node.args
    rows = low.with_inner_unit(x)
    if len(rows.sizes) == 2:  # one row for all experts of a token
        sizes = (*low.shape(ids), rows.sizes[1])
        rows = View(rows.buffer, rows.offset, sizes, (rows.strides[0], 0, rows.strides[1]))
    result = low.allocate(node, low.shape(node), low.dtype(node))
    operands = [rows, low.with_inner_unit(weight), low.with_inner_unit(ids), result]
    low.emit(kernels.get("expert_linear").build(low.target), operands, node)
    return result


LOWERINGS = {torch.ops.anvil.expert_linear.default: _expert_linear}
