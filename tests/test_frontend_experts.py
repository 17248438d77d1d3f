"""Mixtures of experts: captured by index, on one matrix per row, token by token over a cache."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from changed_models import deepseek_v3
from kernel_bench import TARGETS, U32, assert_targets_agree, assert_within, bench, poison
from tiny_models import SIZES, assert_same_function, capture_logits, logits, randomise, run, run_chunks, token_ids
from tiny_models import one_thread as one_thread
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from anvil import kernels
from anvil.errors import UnsupportedError
from anvil.frontend.capture import capture
from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import each_stage, fuse
from anvil.graph.describe import op_name


def qwen3_moe() -> PreTrainedModel:
    """A router that is a softmax, and no shared expert."""
    config = Qwen3MoeConfig(**SIZES, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20)
    return randomise(Qwen3MoeForCausalLM(config))


MODELS = {"deepseek_v3": deepseek_v3, "qwen3_moe": qwen3_moe}


@cache
def captured(name: str):
    model = MODELS[name]()
    return model, capture_logits(model)


@pytest.mark.parametrize("name", MODELS)
def test_experts_become_one_call_per_matrix_and_every_stage_keeps_the_meaning(name):
    model, program = captured(name)
    want = logits(model, token_ids(2, 5))
    for stage in each_stage(program):
        assert_same_function(run(stage, token_ids(2, 5)), want)
    names = [op_name(node) for node in stage.module.graph.nodes]
    layers = sum(hasattr(layer.mlp, "experts") for layer in model.model.layers)
    assert layers and names.count("anvil.expert_linear") == 2 * layers
    assert "aten.bmm" not in names and "aten.repeat_interleave" not in names


@pytest.mark.parametrize("name", MODELS)
def test_chunks_over_a_cache_give_what_the_whole_sequence_gives(name):
    model, program = captured(name)
    ids = token_ids(2, 7)
    steps = incrementalise(fuse(program))
    for chunks in ([7], [4, 1, 2]):
        assert_same_function(run_chunks(steps, ids, chunks), logits(model, ids))


def test_capture_leaves_the_choice_of_implementation_as_it_was():
    model, _ = captured("deepseek_v3")
    assert model.config._experts_implementation != "batched_mm"


def test_a_router_across_tokens_is_refused():
    def across(x):
        return x.topk(1, dim=1)[0].expand(-1, x.shape[1], -1) + x

    program = fuse(capture(across, (torch.randn(2, 5, 8),), ({0: "B", 1: "S"},)))
    with pytest.raises(UnsupportedError, match=r"aten\.topk.*chooses along dimension 1, which is token"):
        incrementalise(program)


def operands(tokens: int, outputs: int, size: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(size)
    x = random.standard_normal((tokens, 3, size)).astype(np.float32)
    w = random.standard_normal((5, outputs, size)).astype(np.float32)
    return x, w, random.integers(0, 5, (tokens, 3))


@pytest.mark.parametrize("target", TARGETS)
def test_expert_linear_is_within_the_linear_bound(target):
    here = bench(target)
    kernel = kernels.get("expert_linear").build(here.target)
    for shape in ((1, 1, 1), (2, 17, 0), (2, 17, 16), (3, 33, 37)):
        x, w, ids = operands(*shape)
        y = here.run(kernel, x, w, ids, poison(*ids.shape, shape[1]), threads=2)
        chosen = w[ids].astype(np.float64)
        want = np.einsum("nkd,nkod->nko", x.astype(np.float64), chosen)
        size = np.einsum("nkd,nkod->nko", np.abs(x).astype(np.float64), np.abs(chosen))
        assert_within(y, want, U32 * (np.abs(want) + min(shape[2], 8) * size))


def test_expert_linear_agrees_to_the_bit_on_all_targets():
    x, w, ids = operands(3, 20, 37)
    assert_targets_agree(
        lambda target: kernels.get("expert_linear").build(target), lambda target: (x, w, ids, poison(3, 3, 20))
    )
