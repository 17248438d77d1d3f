"""The named operators: their values by hand, their shapes, and the tools around graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    one_thread,  # noqa: F401
)

from anvil.errors import InputError
from anvil.frontend.capture import capture
from anvil.frontend.fuse.attention import size_node
from anvil.graph import ops
from anvil.graph.describe import describe_node, dtype_name, op_name, source_line
from anvil.graph.rewrite import argument, same_size
from anvil.graph.symbolic import fake_copy, fake_mode, mode_of, propagate, symbolic_size

OPS = torch.ops.anvil
GENERATOR = torch.Generator().manual_seed(3)


def randn(*shape):
    return torch.randn(*shape, generator=GENERATOR)


Q, K, V = randn(2, 4, 3, 8), randn(2, 2, 5, 8), randn(2, 2, 5, 8)
PAST = torch.tensor([1, 2])
CALLS = {
    "rms_norm": (OPS.rms_norm.default, (randn(2, 3, 8), randn(8), 1e-6)),
    "rope": (OPS.rope.default, (Q, randn(1, 3, 8), randn(1, 3, 8))),
    "attention": (OPS.attention.default, (Q, K, V, None, 0.3, True, 4, 5.0, 2)),
    "attention_cached": (OPS.attention_cached.default, (Q, K, V, PAST, 0.3, None, None)),
    "kv_append": (OPS.kv_append.default, (randn(2, 2, 6, 8), randn(2, 2, 3, 8), PAST)),
    "swiglu": (OPS.swiglu.default, (randn(2, 3), randn(2, 3))),
    "take_row": (OPS.take_row.default, (randn(2, 3, 8), torch.tensor([2, 0]))),
}


@pytest.mark.parametrize("name", CALLS)
def test_schema_and_fake_agree_with_the_implementation(name):
    target, arguments = CALLS[name]
    torch.library.opcheck(target, arguments, test_utils=("test_schema", "test_faketensor"))


def test_rope_turns_halves_not_neighbours():
    x = torch.tensor([1.0, 2, 3, 4]).reshape(1, 1, 1, 4)
    angles = torch.tensor([1.0, 0.01, 1.0, 0.01]).reshape(1, 1, 4)
    want = torch.tensor([-1.98411, 1.95990, 2.46238, 4.01980])
    torch.testing.assert_close(
        ops.rope(x, angles.cos(), angles.sin()).flatten(), want, rtol=0, atol=5e-6
    )  # digits given


def test_a_window_counts_the_own_position():
    """Values one-hot per key: the result's non-zero places are the keys seen."""
    q, k = torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)
    seen = ops.attention(q, k, torch.eye(6)[None, None], None, 1.0, True, 4, None, 0)[0, 0] > 0
    want = [[max(0, i - 3) <= j <= i for j in range(6)] for i in range(6)]
    assert seen.tolist() == want


@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_an_offset_moves_the_frontier_and_blind_rows_are_zero(offset):
    q, k = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    out = ops.attention(q, k, torch.eye(4)[None, None], None, 1.0, True, None, None, offset)[0, 0]
    assert (out > 0).tolist() == [[j <= i + offset for j in range(4)] for i in range(4)]
    assert not out.isnan().any()


@pytest.mark.parametrize("hidden", [False, -torch.inf])
def test_a_row_whose_mask_hides_all_is_zero(hidden):
    mask = torch.tensor([[True] * 3, [False] * 3]) if hidden is False else torch.tensor([[0.0] * 3, [-torch.inf] * 3])
    q, k, v = randn(1, 1, 2, 4), randn(1, 1, 3, 4), randn(1, 1, 3, 4)
    out = ops.attention(q, k, v, mask, 0.5, False, None, None, 0)
    assert torch.equal(out[0, 0, 1], torch.zeros(4))
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out, plain)


def test_the_cap_comes_before_the_mask():
    """Scores 40, 10, 30 capped at 20, the second key hidden: weights .7645, 0, .2355."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([40.0, 10, 30]).reshape(1, 1, 3, 1)
    mask = torch.tensor([[0.0, -torch.inf, 0.0]])
    weights = ops.attention(q, k, torch.eye(3)[None, None], mask, 1.0, False, None, 20.0, 0).flatten()
    torch.testing.assert_close(weights, torch.tensor([0.7645, 0.0, 0.2355]), rtol=0, atol=5e-5)  # digits given


def test_query_heads_read_the_key_head_of_their_group():
    values = torch.arange(2.0).reshape(1, 2, 1, 1)
    out = ops.attention(torch.ones(1, 6, 1, 1), torch.ones(1, 2, 1, 1), values, None, 1.0, False, None, None, 0)
    assert out.flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_cached_attention_reads_no_slot_beyond_its_position():
    cache_k, cache_v = torch.full((2, 2, 9, 8), torch.nan), torch.full((2, 2, 9, 8), torch.nan)
    cache_k[0, :, :4], cache_v[0, :, :4] = K[0, :, :4], V[0, :, :4]
    cache_k[1, :, :5], cache_v[1, :, :5] = K[1], V[1]
    out = ops.attention_cached(Q, cache_k, cache_v, PAST, 0.3, 2, None)
    for row, past in enumerate(PAST.tolist()):
        arguments = [item[row : row + 1] for item in (Q, K, V)]
        torch.testing.assert_close(out[row : row + 1], ops.attention(*arguments, None, 0.3, True, 2, None, past))


@pytest.mark.parametrize("past", [[0, 4], [-1, 0]])
def test_appending_outside_the_cache_is_refused(past):
    with pytest.raises(InputError, match=r"expected every slot in \[0, 6\); allocate a larger cache"):
        ops.kv_append(torch.zeros(2, 1, 6, 4), torch.zeros(2, 1, 3, 4), torch.tensor(past))


def test_appending_writes_each_row_behind_its_own_past():
    cache = torch.zeros(2, 1, 5, 1)
    ops.kv_append(cache, torch.ones(2, 1, 2, 1), torch.tensor([0, 3]))
    assert cache[:, 0, :, 0].tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]


def test_rms_norm_takes_the_mean_of_half_precision_in_f32():
    x = torch.full((1, 32), 300.0, dtype=torch.float16)  # 300² is beyond f16
    assert torch.equal(ops.rms_norm(x, torch.ones(32, dtype=torch.float16), 1e-6), torch.ones_like(x))


# -- tools -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program():
    return capture(lambda x: (x.reshape(-1, 4) * 2.5).softmax(-1, dtype=torch.float64), (randn(2, 3, 4),), ({0: "B"},))


def test_a_node_is_described_by_op_arguments_and_line(program):
    (node,) = program.module.graph.find_nodes(op="call_function", target=torch.ops.aten.softmax.int)
    assert describe_node(node).startswith("aten.softmax.int(mul: f32[3*B, 4], -1, f64) at ")
    assert source_line(node).split(":", 2)[0].endswith("test_graph_ops.py")
    assert op_name(node) == "aten.softmax.int"
    assert describe_node(program.module.graph.output_node()).startswith("output(")
    assert (dtype_name(torch.bool), dtype_name(torch.complex64)) == ("i1", "complex64")


def test_arguments_are_found_by_position_keyword_and_default(program):
    (node,) = program.module.graph.find_nodes(op="call_function", target=torch.ops.aten.softmax.int)
    assert (argument(node, "dim"), argument(node, "dtype")) == (-1, torch.float64)
    with pytest.raises(KeyError, match="has no argument 'axis'"):
        argument(node, "axis")


def test_sizes_compare_without_deciding_what_they_are():
    mode = fake_mode()
    batch, tokens = symbolic_size(mode, "B", 3), symbolic_size(mode, "S", 3)
    assert same_size(batch, symbolic_size(mode, "B", 3))
    assert not same_size(batch, tokens)
    assert not same_size(batch, 3)
    assert not mode.shape_env.replacements


def test_a_program_without_any_argument_is_refused():
    program = capture(lambda x: torch.ones(3) + x * 0, (torch.ones(3),))
    program.module.graph.find_nodes(op="placeholder")[0].op = "call_function"
    with pytest.raises(InputError, match="has no inputs and no parameters"):
        mode_of(program)


def test_a_graph_that_holds_for_one_size_only_is_refused():
    mode = fake_mode()
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (x, y)))
    x.meta["val"] = fake_copy(mode, torch.ones(3), {0: "N"})
    y.meta["val"] = fake_copy(mode, torch.ones(3), {0: "M"})
    with pytest.raises(InputError, match="symbolic sizes were fixed"):
        propagate(torch.fx.GraphModule({}, graph), mode)


def test_a_size_of_no_input_cannot_be_computed(program):
    other = symbolic_size(fake_mode(), "Q", 3)
    with pytest.raises(LookupError, match="no input has the size Q"):
        size_node(program, program.module.graph.output_node(), 2 * other.node.expr + 1)
