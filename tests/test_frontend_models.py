"""Models whose PyTorch code was changed: every stage, and the incremental form, compute what the code says."""

from __future__ import annotations

from functools import cache, cached_property

import pytest
import torch
from changed_models import MODELS, captured
from tiny_models import (
    assert_same_function,
    one_thread,  # noqa: F401
    run,
    run_chunks,
    token_ids,
)

from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import each_stage
from anvil.graph.describe import op_name

TOKENS = 9


class Case:
    """A model, what it says about some tokens, and its programs."""

    def __init__(self, name: str) -> None:
        model, program = captured(name)
        self.ids = token_ids(2, TOKENS)
        self.stages = list(each_stage(program))
        with torch.no_grad():
            output = model(self.ids)
        self.logits = getattr(output, "logits", output)

    @cached_property
    def incremental(self):
        return incrementalise(self.stages[-1])

    def count(self, name: str) -> int:
        return sum(op_name(node) == name for node in self.stages[-1].module.graph.nodes)


case = cache(Case)


@pytest.mark.parametrize("name", MODELS)
def test_every_stage_computes_what_eager_computes(name):
    for program in case(name).stages:
        assert_same_function(run(program, case(name).ids), case(name).logits)


@pytest.mark.parametrize("chunks", [[1] * TOKENS, [2, 3, 1, 3]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_in_pieces_give_the_logits_of_the_whole(name, chunks):
    assert_same_function(run_chunks(case(name).incremental, case(name).ids, chunks), case(name).logits)


@pytest.mark.parametrize(
    ("name", "op", "count"),
    [
        ("post_norm", "anvil.rms_norm", 5),
        ("parallel_residual", "anvil.rms_norm", 3),
        ("one_layer_different", "anvil.rms_norm", 6),
        ("one_layer_different", "anvil.swiglu", 2),
        ("gelu", "anvil.swiglu", 0),
        ("head_norms", "anvil.rms_norm", 9),
        ("gemma2", "anvil.rms_norm", 9),
        ("gemma2", "anvil.attention", 2),
        ("eager_attention", "anvil.attention", 2),
        ("written_out", "anvil.rms_norm", 4),
        ("written_out", "anvil.rope", 4),
        ("written_out", "anvil.attention", 2),
        ("written_out", "anvil.swiglu", 2),
    ],
)
def test_changed_models_fuse_what_is_there(name, op, count):
    assert case(name).count(op) == count


def _attention_arguments(name: str) -> list[tuple]:
    target = torch.ops.anvil.attention.default
    return [n.args for n in case(name).stages[-1].module.graph.find_nodes(op="call_function", target=target)]


def test_a_sliding_window_becomes_a_rule():
    assert [arguments[3:] for arguments in _attention_arguments("sliding_window")] == [
        (None, 8**-0.5, True, 4, None, 0)
    ] * 2


def test_gemma_alternates_windows_and_caps_scores():
    assert [arguments[3:] for arguments in _attention_arguments("gemma2")] == [
        (None, 8**-0.5, True, 4, 5.0, 0),
        (None, 8**-0.5, True, None, 5.0, 0),
    ]


@pytest.mark.parametrize(("name", "heads"), [("llama", 2), ("multi_head", 4), ("multi_query", 1), ("eight_heads", 4)])
def test_key_heads_are_never_repeated(name, heads):
    assert all(arguments[1].meta["val"].shape[1] == heads for arguments in _attention_arguments(name))
