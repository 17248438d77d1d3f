"""The greedy head: of all positions only one row per sequence is wanted, and of its logits the best token."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

import anvil.graph.ops  # noqa: F401  (registers torch.ops.anvil)
from anvil.errors import UnsupportedError
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import emit, finish, fork, is_call, shape_of
from anvil.graph.symbolic import fake_tensor, mode_of

aten, ops = torch.ops.aten, torch.ops.anvil

LAST = "last"  # the added input, i64 [B]: the row of each sequence whose successor is asked for


def greedy_head(program: GraphProgram) -> GraphProgram:
    """From logits [B, S, V] to (logits [B, 1, V] of row ``last[b]``, next token i64 [B, 1]).

    The row is taken as early as a token-wise linear chain before the output allows, so that the vocabulary projection
    runs on one row. Raises :class:`UnsupportedError` when the program's only output is not [B, S, V].
    """
    result = fork(program, "greedy_head")
    graph = result.module.graph
    output = graph.output_node()
    (logits, *others) = output.args[0]
    if others or len(shape_of(logits)) != 3:
        raise UnsupportedError(
            f"taking the greedy head of {program.name!r}: outputs {[tuple(shape_of(n)) for n in (logits, *others)]}, "
            "expected one of shape [batch, tokens, vocabulary]"
        )
    last = _add_input(result, shape_of(logits)[0])
    row = _row(result, logits, last)
    token = emit(result, output, aten.argmax.default, row, -1)
    output.args = ((row, token),)
    finish(result)
    return replace(result, inputs=(*result.inputs, LAST))


def _add_input(program: GraphProgram, batch: int | torch.SymInt) -> Node:
    """A placeholder after the last input."""
    graph = program.module.graph
    placeholders = {node.target: node for node in graph.find_nodes(op="placeholder")}
    with graph.inserting_after(placeholders[program.inputs[-1]]):
        node = graph.placeholder(LAST)
    node.meta["val"] = fake_tensor(mode_of(program), (batch,), torch.int64)
    return node


def _row(program: GraphProgram, value: Node, last: Node) -> Node:
    """Row ``last[b]`` of ``value`` [B, S, ...], taken before a linear layer that made it."""
    if not is_call(value, aten.linear.default):
        return emit(program, program.module.graph.output_node(), ops.take_row.default, value, last)
    x, *rest = value.args
    row = emit(program, value, ops.take_row.default, x, last)
    return emit(program, value, aten.linear.default, row, *rest)
