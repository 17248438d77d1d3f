"""What a decoder adds to a model: logits of one row only, and the token they choose."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.errors import UnsupportedError
from anvil.graph.describe import describe_node
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import emit, finish, fork, is_call, shape_of
from anvil.graph.symbolic import fake_tensor, mode_of, propagate

aten, anvil = torch.ops.aten, torch.ops.anvil
LAST = "last"

# Operations on one token whose first operand is the token's; the other operands are weights or numbers.
_PER_TOKEN = (
    aten.linear.default,
    anvil.rms_norm.default,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.tanh.default,
    aten._to_copy.default,
)


def last_row(program: GraphProgram) -> GraphProgram:
    """Compute the output at one row of each sequence only: [B, S, V] becomes [B, 1, V].

    The new input ``last: i64[B]`` says which row (counted within this call). Everything after the last operation that
    mixes values runs on that row, above all the output projection.

    Raises UnsupportedError unless the program has one output of rank 3.
    """
    result = fork(program, "last_row")
    graph = result.module.graph
    output = graph.output_node()
    (value,) = _single_output(result)
    with graph.inserting_after(_last_input(result)):
        last = graph.placeholder(LAST)
    last.meta["val"] = fake_tensor(mode_of(result), shape_of(value)[:1], torch.int64)
    user, source = output, value
    while _runs_on_one_row(result, source):
        user, source = source, source.args[0]
    row = emit(result, user, anvil.take_row.default, source, last)
    row.meta.update({key: source.meta[key] for key in ("stack_trace", "nn_module_stack") if key in source.meta})
    user.replace_input_with(source, row)
    result.inputs = (*program.inputs, LAST)
    result.notes.append(f"last_row: one row from {source.name} on")
    finish(result)
    propagate(result.module, mode_of(result))  # costs what is new: the calls after the row was taken
    return result


def greedy(program: GraphProgram) -> GraphProgram:
    """Append the index of the largest logit as a second output: i64 [B, rows]. Ties go to the lowest index.

    Raises UnsupportedError unless the program has one output of rank 3.
    """
    result = fork(program, "greedy")
    output = result.module.graph.output_node()
    (value,) = _single_output(result)
    chosen = emit(result, output, aten.argmax.default, value, 2)
    output.args = ((value, chosen),)
    output.meta["val"] = (value.meta["val"], chosen.meta["val"])
    finish(result)
    return result


def _single_output(program: GraphProgram) -> tuple[Node, ...]:
    outputs = program.module.graph.output_node().args[0]
    if len(outputs) != 1 or len(shape_of(outputs[0])) != 3:
        words = ", ".join(describe_node(value) for value in outputs)
        raise UnsupportedError(f"choosing tokens of {program.name!r}: outputs {words}; expected one of rank 3: logits")
    return tuple(outputs)


def _last_input(program: GraphProgram) -> Node:
    return next(n for n in program.module.graph.find_nodes(op="placeholder") if n.target == program.inputs[-1])


def _runs_on_one_row(program: GraphProgram, node: Node) -> bool:
    """Whether a row of this value needs only that row of its first operand, and nobody else needs other rows."""
    if not is_call(node, *_PER_TOKEN) or len(node.users) != 1:
        return False
    source, *others = node.args
    if not isinstance(source, Node) or len(shape_of(source)) != 3:
        return False
    return all(_same_for_every_token(program, other) for other in others)


def _same_for_every_token(program: GraphProgram, operand: object) -> bool:
    if not isinstance(operand, Node):
        return True
    return operand.target in program.params and all(isinstance(size, int) for size in shape_of(operand))
