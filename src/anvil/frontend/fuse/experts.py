"""Weights picked by index, one matrix per row of a batch -> ``anvil::expert_linear``.

A mixture that sends N tokens to K experts each is captured on N * K rows: ``bmm(weight[ids.reshape(-1)], rows)``. The
call is rewritten on [N, K], and with it what surrounds it (slices, pointwise operations), so that tokens stay a
dimension of their own and no matrix is copied.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, argument, calls, emit, is_call, same_shape, same_size, shape_of, substitute

aten = torch.ops.aten
_SWIGLU = torch.ops.anvil.swiglu.default


def _fuse(program: GraphProgram) -> None:
    if not any(_picked(node.args[0]) is not None for node in calls(program.module.graph, aten.bmm.default)):
        return
    apart: dict[Node, Node] = {}  # a value on N * K rows -> the same on [N, K]
    for node in list(program.module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        whole = apart.get(node.args[0]) if is_call(node, aten.reshape.default) else None
        if whole is not None and same_shape(shape_of(node), shape_of(whole)):
            substitute(node, whole)
            continue
        found = _taken_apart(program, node, apart)
        if found is not None:
            apart[node] = found


def _taken_apart(program: GraphProgram, node: Node, apart: dict[Node, Node]) -> Node | None:
    """``node`` on [N, K] instead of N * K rows, where that is known of its operands."""
    if is_call(node, aten.reshape.default) and len(shape_of(node)) == 1 and len(shape_of(node.args[0])) == 2:
        return node.args[0] if isinstance(shape_of(node.args[0])[1], int) else None
    if is_call(node, aten.squeeze.dims) and node.args[1] == [2] and is_call(node.args[0], aten.bmm.default):
        return _expert_linear(program, node, apart)
    if is_call(node, aten.slice.Tensor) and node.args[0] in apart and argument(node, "dim") > 0:
        x, dim, *bounds = node.args
        return emit(program, node, aten.slice.Tensor, apart[x], dim + 1, *bounds)
    if is_call(node, aten.unsqueeze.default) and node.args[0] in apart and node.args[1] > 0:
        return emit(program, node, aten.unsqueeze.default, apart[node.args[0]], node.args[1] + 1)
    operands = node.all_input_nodes
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is _SWIGLU
    if pointwise and operands and all(operand in apart for operand in operands):
        ranks = {len(shape_of(operand)) for operand in operands}
        if len(ranks) == 1:
            args = torch.fx.node.map_aggregate(node.args, lambda a: apart[a] if isinstance(a, Node) else a)
            return emit(program, node, node.target, *args, **node.kwargs)
    return None


def _picked(x: object) -> tuple[Node, Node] | None:
    """(weight [E, O, D], ids on N * K rows) of ``weight[ids]``."""
    if not is_call(x, aten.index.Tensor) or len(x.args[1]) != 1 or len(shape_of(x.args[0])) != 3:
        return None
    return x.args[0], x.args[1][0]


def _expert_linear(program: GraphProgram, node: Node, apart: dict[Node, Node]) -> Node | None:
    """``squeeze(bmm(weight[ids], rows[:, :, None]))``; rows are each token K times, or K rows per token."""
    picked, column = node.args[0].args
    found = _picked(picked)
    if found is None or not is_call(column, aten.unsqueeze.default) or column.args[1] != 2:
        return None
    weight, flat = found
    ids, rows = apart.get(flat), column.args[0]
    if ids is None or len(shape_of(ids)) != 2:
        return None
    count = shape_of(ids)[1]
    if is_call(rows, aten.repeat_interleave.self_int) and argument(rows, "repeats") == count:
        x = rows.args[0]
        if argument(rows, "dim") != 0 or not same_size(shape_of(x)[0], shape_of(ids)[0]):
            return None
    elif rows in apart:
        x = apart[rows]
    else:
        return None
    program.notes.append(f"fuse_experts: {count} of {shape_of(weight)[0]} experts at {source_line(node)}")
    return emit(program, node, torch.ops.anvil.expert_linear.default, x, weight, ids)


FUSE_EXPERTS = GraphPass("fuse_experts", _fuse)
