"""anvil's compiled models behind the backend protocol, as the full-model stage uses them."""

from __future__ import annotations

import pytest

from assay import backends
from assay.tokens import judge, registry
from assay.tokens.stage import TokenStage


@pytest.fixture(scope="module")
def stage() -> TokenStage:
    return TokenStage(registry.model("llama-tiny"))


@pytest.fixture(scope="module")
def model(stage: TokenStage):
    return stage.load(backends.load("anvil"), "x86_64-avx2", threads=2)


def test_a_longer_text_between_two_generations_does_not_disturb_the_token_loop(stage: TokenStage, model) -> None:
    golden = stage.golden.prompts[2]
    first = judge.generate(model, golden.prompt_ids, 8)
    model.logits([65] * 200)  # needs more scratch memory than anything before
    assert judge.generate(model, golden.prompt_ids, 8) == first == golden.new_ids[:8]


def test_logits_are_the_same_bits_with_any_thread_count_and_after_any_other_call(stage: TokenStage, model) -> None:
    ids = stage.golden.prompts[4].ids[:40].tolist()
    two = model.logits(ids).tobytes()
    model.threads = 1
    assert model.logits(ids).tobytes() == two
    model.threads = 2


def test_the_layers_of_the_residual_stream_have_the_goldens_names(stage: TokenStage, model) -> None:
    assert tuple(model.residuals([1, 2, 3])) == stage.golden.layers
