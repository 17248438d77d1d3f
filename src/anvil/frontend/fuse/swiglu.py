"""Gated activation: ``silu(gate) * up`` -> ``anvil::swiglu``."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, are_float32, by_target, is_call, respell, same_shape, shape_of

aten = torch.ops.aten


def _fuse(program: GraphProgram, node: Node) -> Node | None:
    for activated, up in (node.args, node.args[::-1]):
        if not is_call(activated, aten.silu.default) or not isinstance(up, Node):
            continue
        gate = activated.args[0]
        if are_float32(gate, up) and same_shape(shape_of(gate), shape_of(up)):
            program.notes.append(f"fuse_swiglu: at {source_line(node)}")
            return respell(node, torch.ops.anvil.swiglu.default, gate, up)
    return None


FUSE_SWIGLU = GraphPass("fuse_swiglu", by_target({aten.mul.Tensor: _fuse}))
