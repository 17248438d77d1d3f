"""Capture: any module or function becomes a GraphProgram that computes the same."""

from __future__ import annotations

import pytest
import torch
from tiny_models import (
    capture_logits,
    logits,
    one_thread,  # noqa: F401
    run,
    tiny_llama,
    token_ids,
)
from torch import nn

from anvil.errors import InputError, UnsupportedError
from anvil.frontend.capture import capture
from anvil.graph.describe import describe_node, source_line
from anvil.graph.symbolic import symbol_name

MATRIX = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


@pytest.fixture(scope="module")
def program(llama):
    return capture_logits(llama)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 17)])
def test_captured_llama_computes_what_eager_computes(llama, program, shape):
    ids = token_ids(*shape)
    assert torch.equal(run(program, ids), logits(llama, ids))


def test_placeholders_are_inputs_then_parameters_under_their_own_names(program):
    names = [node.target for node in program.module.graph.find_nodes(op="placeholder")]
    assert names == [*program.inputs, *program.params]
    assert program.inputs == ("input_ids",)
    assert program.paths["model_layers_0_mlp_up_proj_weight"] == "model.layers.0.mlp.up_proj.weight"


def test_tied_weights_are_one_parameter(llama, program):
    embedding = llama.model.embed_tokens.weight
    same = [name for name, tensor in program.params.items() if tensor.data_ptr() == embedding.data_ptr()]
    assert same == ["model_embed_tokens_weight"]


def test_non_persistent_buffers_are_parameters(llama, program):
    assert "model.rotary_emb.inv_freq" not in llama.state_dict()
    assert torch.equal(program.params["model_rotary_emb_inv_freq"], llama.model.rotary_emb.inv_freq)


def test_parameters_are_not_copied(llama, program):
    tensors = dict(llama.named_parameters()) | dict(llama.named_buffers())
    for name, tensor in program.params.items():
        assert tensor.data_ptr() == tensors[program.paths[name]].data_ptr()


def test_metadata_carries_named_sizes_and_python_lines(program):
    ids = program.module.graph.find_nodes(op="placeholder")[0]
    assert [symbol_name(size) for size in ids.meta["val"].shape] == ["B", "S"]
    assert program.symbols == {"B": (1, None), "S": (1, None)}
    silu = program.module.graph.find_nodes(op="call_function", target=torch.ops.aten.silu.default)[0]
    assert "f32[B, S, 44]" in describe_node(silu)
    assert "activations.py" in source_line(silu)


def test_equal_dynamic_names_are_one_symbol():
    program = capture(lambda x, y: x + y, (MATRIX, MATRIX), ({0: "N"}, {0: "N"}))
    shapes = [node.meta["val"].shape for node in program.module.graph.find_nodes(op="placeholder")]
    assert [str(shape[0]) for shape in shapes] == ["N", "N"]
    assert program.symbols == {"N": (1, None)}


def test_one_tensor_given_for_two_inputs_stays_two_inputs():
    program = capture(lambda x, y: 2 * x - y, (MATRIX, MATRIX))
    assert torch.equal(run(program, MATRIX, MATRIX + 1), MATRIX - 1)


def test_function_inputs_keep_their_names_and_ranges():
    def weigh(left, right):
        return left * 2 - right, left.sum()

    program = capture(weigh, (MATRIX, MATRIX), ({0: "N"}, {0: "N"}), ranges={"N": (1, 8)})
    assert program.inputs == ("left", "right")
    assert program.symbols == {"N": (1, 8)}
    difference, total = run(program, MATRIX, MATRIX + 1)
    assert torch.equal(difference, MATRIX - 1)
    assert torch.equal(total, MATRIX.sum())


def test_a_python_constant_tensor_becomes_a_parameter():
    program = capture(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), (MATRIX,))
    assert [tensor.tolist() for tensor in program.params.values()] == [[1.0, 2.0, 3.0, 4.0]]


def test_in_place_work_on_intermediates_is_functionalised():
    def shift(x):
        y = x * 2
        y[:, 0] = 7.0
        return y.add_(1)

    program = capture(shift, (MATRIX,))
    assert torch.equal(run(program, MATRIX), shift(MATRIX))
    calls = [node.target for node in program.module.graph.nodes if node.op == "call_function"]
    assert not any(target._schema.is_mutable for target in calls if isinstance(target, torch._ops.OpOverload))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.steps.add_(1)
        return x + self.steps


def test_a_changed_buffer_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="steps is changed in place"):
        capture(Counter(), (MATRIX,))


def test_a_changed_input_is_refused():
    with pytest.raises(UnsupportedError, match="changed in place"):
        capture(lambda x: x.add_(1), (MATRIX,))


def test_data_dependent_control_flow_names_the_line():
    def branch(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match=r"test_frontend_capture\.py:\d+: return x if x\.sum\(\) > 0"):
        capture(branch, (MATRIX,))


def test_a_size_that_is_not_free_is_an_input_error():
    with pytest.raises(InputError, match="not free"):
        capture(lambda x: x + torch.ones(3, 4), (MATRIX,), ({0: "N"},))


@pytest.mark.parametrize(
    ("examples", "dynamic", "message"),
    [
        ((3,), (), "x=3 is a int, expected a tensor"),
        ((MATRIX, MATRIX), (), "got 2 example inputs, expected at most 1: x"),
        ((MATRIX,), ({2: "N"},), "dynamic dimension 2 of x, expected one of 0..1"),
        ((MATRIX[:1],), ({0: "N"},), "N=1 .dimension 0 of x., expected at least 2"),
        ((MATRIX,), ({0: "N", 1: "N"},), "N is 3 in x and 4 in x"),
        ((MATRIX,), ({0: "n"},), "name of a dynamic size is 'n'"),
        ((MATRIX,), ({}, {0: "N"}), "dynamic describes 2 inputs, expected 1"),
    ],
)
def test_arguments_that_describe_no_program_are_refused(examples, dynamic, message):
    with pytest.raises(InputError, match=message):
        capture(lambda x: x * 2, examples, dynamic)


def test_an_output_that_is_no_tensor_is_refused():
    with pytest.raises(UnsupportedError, match="is not a tensor"):
        capture(lambda x: (x, 3), (MATRIX,))


def test_a_size_limited_by_a_table_says_which_range_fits():
    table = torch.ones(8)
    with pytest.raises(InputError, match=r"(?s)not free.*S <= 8|<= 8"):
        capture(lambda x: x + table[: x.shape[0]], (torch.ones(4),), ({0: "S"},))
    program = capture(lambda x: x + table[: x.shape[0]], (torch.ones(4),), ({0: "S"},), ranges={"S": (1, 8)})
    assert torch.equal(run(program, torch.ones(8)), torch.full((8,), 2.0))


def test_control_flow_of_the_graph_is_refused():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    with pytest.raises(UnsupportedError, match="control flow is not supported"):
        capture(branch, (MATRIX,))
