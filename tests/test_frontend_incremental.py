"""The incremental form: what it guarantees, and the programs it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    assert_same_function,
    capture_logits,
    logits,
    new_caches,
    one_thread,  # noqa: F401
    run,
    run_chunks,
    tiny_llama,
    token_ids,
)

from anvil.errors import InputError, UnsupportedError
from anvil.frontend.capture import capture
from anvil.frontend.decoding import greedy, last_row
from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import fuse

CAPACITY = 16


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


@pytest.fixture(scope="module")
def program(llama):
    return incrementalise(fuse(capture_logits(llama)))


def test_inputs_caches_and_symbols_are_declared(program):
    assert program.inputs == ("input_ids", "past")
    assert [spec.placeholder for spec in program.caches] == ["k_cache_0", "v_cache_0", "k_cache_1", "v_cache_1"]
    assert {(spec.heads, spec.head_dim) for spec in program.caches} == {(2, 8)}
    assert program.symbols["C"] == (1, None)
    names = [node.target for node in program.module.graph.find_nodes(op="placeholder")]
    assert names == [*program.inputs, *(spec.placeholder for spec in program.caches), *program.params]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cuts=st.sets(st.integers(1, 11), max_size=6), batch=st.integers(1, 3), seed=st.integers(0, 99))
def test_any_cut_into_pieces_gives_the_same_logits(llama, program, cuts, batch, seed):
    edges = [0, *sorted(cuts), 12]
    ids = token_ids(batch, 12, seed)
    chunks = [end - start for start, end in pairwise(edges)]
    assert_same_function(run_chunks(program, ids, chunks), logits(llama, ids))


def test_rows_may_have_pasts_of_different_length(llama, program):
    """A short prompt is padded; its padding's slots are overwritten before anything can see them."""
    ids, lengths = token_ids(3, 10), torch.tensor([3, 7, 5])
    padded = ids[:, :7].clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = 60
    caches = new_caches(program, 3, CAPACITY)
    first = run(program, padded, torch.zeros(3, dtype=torch.int64), caches=caches)
    steps = [run(program, ids.gather(1, (lengths + step)[:, None]), lengths + step, caches=caches) for step in range(3)]
    want = logits(llama, ids)
    for row, length in enumerate(lengths.tolist()):
        assert_same_function(first[row, :length], want[row, :length])
        decoded = torch.stack([step[row, 0] for step in steps])
        assert_same_function(decoded, want[row, length : length + 3])


def test_the_cache_can_be_filled_to_its_last_slot_and_not_beyond(llama, program):
    ids = token_ids(1, 6)
    caches = new_caches(program, 1, 6)
    run(program, ids[:, :5], torch.tensor([0]), caches=caches)
    assert_same_function(run(program, ids[:, 5:], torch.tensor([5]), caches=caches), logits(llama, ids)[:, 5:])
    with pytest.raises(InputError, match=r"past=\[6\] with 1 new tokens, expected every slot in \[0, 6\)"):
        run(program, ids[:, 5:], torch.tensor([6]), caches=caches)


@pytest.mark.parametrize("incremental", [False, True])
def test_last_row_computes_one_row_of_logits(llama, program, incremental):
    ids, last = token_ids(3, 6), torch.tensor([5, 0, 3])
    want = logits(llama, ids)[torch.arange(3), last][:, None]
    whole = program if incremental else fuse(capture_logits(llama))
    one = last_row(whole)
    assert one.inputs == (*whole.inputs, "last")
    inputs = (ids, torch.zeros(3, dtype=torch.int64), last) if incremental else (ids, last)
    caches = new_caches(one, 3, CAPACITY) if incremental else ()
    assert_same_function(run(one, *inputs, caches=caches), want)


def test_last_row_runs_the_output_projection_on_one_row(program):
    (value,) = last_row(program).module.graph.output_node().args[0]
    sizes = [str(size) for size in value.args[0].meta["val"].shape]
    assert value.target is torch.ops.aten.linear.default
    assert sizes == ["B", "1", "32"]


def test_last_row_goes_before_a_soft_cap_and_its_projection():
    def capped(x, w):
        return torch.tanh(F.linear(x, w) / 3.0) * 3.0

    x, w = torch.randn(2, 5, 4), torch.randn(6, 4)
    program = fuse(capture(capped, (x, w), ({0: "B", 1: "S"},)))
    one = last_row(program)
    last = torch.tensor([1, 4])
    assert_same_function(run(one, x, w, last), capped(x, w)[torch.arange(2), last][:, None])


def test_greedy_appends_the_largest_logit(program, llama):
    ids = token_ids(2, 4)
    chosen = greedy(program)
    scores, tokens = run(chosen, ids, torch.zeros(2, dtype=torch.int64), caches=new_caches(chosen, 2, CAPACITY))
    assert_same_function(scores, logits(llama, ids))
    assert torch.equal(tokens, logits(llama, ids).argmax(-1))


@pytest.mark.parametrize("step", [last_row, greedy])
def test_choosing_tokens_needs_logits(step):
    program = fuse(capture(lambda x: (x, x + 1), (torch.ones(2, 3, 4),), ({0: "B", 1: "S"},)))
    with pytest.raises(UnsupportedError, match=r"expected one of rank 3: logits"):
        step(program)


def make_incremental(function, *examples):
    """Capture with [B, S, ...] as the first input, fuse and make incremental."""
    return incrementalise(fuse(capture(function, examples, ({0: "B", 1: "S"},), "refused")))


HIDDEN = torch.randn(2, 5, 8)


def attend(x, **options):
    heads = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, **options).transpose(1, 2).reshape(x.shape)


def see_the_future(x):
    return attend(x)


def see_other_tokens_only(x):
    count = x.shape[1]
    return attend(x, attn_mask=torch.ones(count, count, dtype=torch.bool).tril(-1))


def see_every_second(x):
    index = torch.arange(x.shape[1])
    return attend(x, attn_mask=(index[:, None] - index) % 2 == 0)


def biased_scores(x):
    return attend(x, attn_mask=torch.tensor([[0.5]]))


def mean_of_tokens(x):
    return x - x.mean(1, keepdim=True)


def running_sum(x):
    return x.cumsum(1)


def first_token(x):
    return x + x[:, :1]


def reversed_tokens(x):
    return x.flip(1)


def scale_by_length(x):
    return x / x.shape[1]


def pairs_of_tokens(x):
    return (x @ x.transpose(1, 2)).sum(-1, keepdim=True) + x


def position_from_the_end(x):
    return x + torch.arange(x.shape[1], 0, -1)[:, None]


def mix_the_batch(x):
    return x - x.mean(0, keepdim=True)


def merge_tokens_into_width(x):
    return x.transpose(1, 2).reshape(x.shape[0], -1, 1) * 2


def summary(x):
    return x.mean(2)[:, 0]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (see_the_future, "anvil.attention.*is not causal"),
        (see_other_tokens_only, "anvil.attention.*shifted: query i sees keys up to i . -1"),
        (see_every_second, r"aten\.sub\.Tensor.*tokens meet other tokens"),
        (biased_scores, "anvil.attention.*its mask is a tensor"),
        (mean_of_tokens, r"aten\.mean\.dim.*one of which is token"),
        (running_sum, r"aten\.cumsum.*is not the position"),
        (first_token, r"aten\.slice\.Tensor.*takes a part of a token dimension"),
        (reversed_tokens, r"aten\.flip.*not known to treat each token by itself"),
        (scale_by_length, r"aten\.div\.Tensor.*depends on the number of tokens"),
        (pairs_of_tokens, r"aten\.matmul.*tokens meet other tokens"),
        (position_from_the_end, r"aten\.arange.*is not the position"),
        (mix_the_batch, r"aten\.mean\.dim.*one of which is batch"),
        (merge_tokens_into_width, r"aten\.reshape.*merges or splits the batch or token"),
        (summary, r"aten\.select\.int.*picks one token row"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_programs_that_mix_tokens_are_refused_with_op_and_line(function, reason):
    with pytest.raises(UnsupportedError, match=f"{reason}") as refusal:
        make_incremental(function, HIDDEN)
    assert "test_frontend_incremental.py:" in str(refusal.value)


def test_a_program_without_batch_and_tokens_is_refused():
    program = fuse(capture(lambda x: x * 2, (HIDDEN,), ({0: "B"},)))
    with pytest.raises(InputError, match=r"shape \(B, 5, 8\), expected dynamic sizes for batch and tokens"):
        incrementalise(program)


def test_a_taken_name_is_refused():
    program = fuse(
        capture(lambda x, past: x + past[:, None, None], (HIDDEN, torch.ones(2)), ({0: "B", 1: "S"}, {0: "B"}))
    )
    with pytest.raises(InputError, match="'past' is taken"):
        incrementalise(program)
