"""The pipeline: after every stage the program computes what eager PyTorch computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    assert_same_function,
    capture_logits,
    logits,
    one_thread,  # noqa: F401
    run,
    tiny_llama,
    token_ids,
)

from anvil.frontend.stages import NORMALISE, STAGES, each_stage, fuse
from anvil.graph.describe import op_name


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


@pytest.fixture(scope="module")
def stages(llama):
    return list(each_stage(capture_logits(llama)))


def count_ops(program):
    counts: dict[str, int] = {}
    for node in program.module.graph.nodes:
        if node.op == "call_function":
            counts[op_name(node)] = counts.get(op_name(node), 0) + 1
    return counts


def test_stages_have_distinct_names(stages):
    names = [program.stage for program in stages]
    assert names == ["capture", *(name for name, _ in STAGES)]
    assert len(set(names)) == len(names)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(batch=st.integers(1, 3), tokens=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_stage_computes_what_eager_computes(llama, stages, batch, tokens, seed):
    ids = token_ids(batch, tokens, seed)
    want = logits(llama, ids)
    for program in stages:
        assert_same_function(run(program, ids), want)


def test_normalisation_changes_no_bit(llama, stages):
    ids = token_ids(2, 7)
    want = logits(llama, ids)
    for program in stages[: len(NORMALISE) + 1]:
        assert torch.equal(run(program, ids), want), program.stage


def test_a_stage_leaves_the_program_it_is_given_alone(llama):
    captured = capture_logits(llama)
    before = str(captured.module.graph)
    fuse(captured)
    assert str(captured.module.graph) == before
    assert captured.stage == "capture"


def test_llama_becomes_named_operations(stages):
    counts = count_ops(stages[-1])
    assert counts["anvil.rms_norm"] == 5
    assert counts["anvil.rope"] == 4
    assert counts["anvil.attention"] == 2
    assert counts["anvil.swiglu"] == 2
    assert counts["aten.linear"] == 15
    assert not {"aten.rsqrt", "aten.mean.dim", "aten.silu", "aten.le.Tensor", "aten.diff"} & counts.keys()


def test_every_fusion_is_noted_with_its_python_line(stages):
    notes = [note for note in stages[-1].notes if note.startswith(("fuse_", "fold_"))]
    assert len(notes) == 5 + 4 + 2 + 2 + 2
    assert all("/transformers/" in note and ".py:" in note for note in notes)


def test_every_node_has_metadata_after_every_stage(stages):
    for program in stages:
        for node in program.module.graph.nodes:
            if node.op == "call_function":
                assert node.meta.get("val") is not None or program.stage == "capture", (program.stage, node)


def test_unread_parameters_are_dropped(stages):
    program = stages[-1]
    assert "model_rotary_emb_original_inv_freq" not in program.params
    placeholders = [node.target for node in program.module.graph.find_nodes(op="placeholder")]
    assert placeholders == [*program.inputs, *program.params]
    assert program.paths.keys() == program.params.keys()
