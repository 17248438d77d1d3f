"""A whole tiny Llama through the lowering: logits equal PyTorch's, layers share kernels, rows name their origin."""

from __future__ import annotations

import pytest
from lowered import Lowered
from tiny_models import assert_same_function, capture_logits, logits, tiny_llama, token_ids

from anvil.frontend.stages import fuse


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def compiled(model):
    return Lowered(fuse(capture_logits(model)))


@pytest.mark.parametrize("batch, tokens", [(1, 1), (2, 5), (3, 17), (1, 64)])
def test_logits_equal_eager(model, compiled, batch, tokens):
    ids = token_ids(batch, tokens)
    assert_same_function(compiled(ids), logits(model, ids))


def test_two_threads_change_no_bit(compiled):
    ids = token_ids(3, 19)
    assert compiled(ids, threads=2).equal(compiled(ids, threads=1))


def test_layers_share_their_kernels(compiled):
    per_layer = [name for name in compiled.kernels if name.startswith(("linear", "rope", "rms_norm", "add_"))]
    assert len(set(per_layer)) <= 4


def test_a_tied_embedding_is_stored_once(compiled):
    embedding = [n for n, parameter in compiled.plan.weights.items() if parameter == "model_embed_tokens_weight"]
    assert len(embedding) == 1


def test_every_row_names_its_python_line(compiled):
    assert all("/transformers/" in row.source and ".py:" in row.source for row in compiled.plan.rows)
    names = {node.name for node in compiled.program.module.graph.nodes}
    assert {row.node for row in compiled.plan.rows} <= names


def test_views_around_attention_are_free(compiled):
    copies = [row for row in compiled.plan.rows if row.kernel.startswith("copy")]
    assert len(copies) == 3  # two halves of the angles, and the position of the first token
