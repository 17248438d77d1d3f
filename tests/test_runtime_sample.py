"""The sampler against transformers' logits processors, and what a seed promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

import anvil
from anvil.errors import InputError
from anvil.models import synthetic
from anvil.runtime.sample import Sampling, choose, processed

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
PROMPTS = [[5, 17, 3, 88, 42], [7], [61, 30, 2, 11, 9, 9, 9, 70, 4, 4, 1]]
WARM = Sampling(temperature=1.3, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.2, seed=7)


@pytest.fixture(scope="module")
def model():
    return anvil.compile(synthetic.build(CONFIG, seed=3).module, threads=2, max_prefill=4)


def by_transformers(logits: np.ndarray, so_far: list[int], sampling: Sampling) -> np.ndarray:
    """What transformers' generate() draws from, in its order, computed in float64."""
    ids, scores = torch.tensor([so_far]), torch.from_numpy(logits.astype(np.float64))[None]
    steps: list = [theirs.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    steps.append(theirs.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(theirs.TopKLogitsWarper(sampling.top_k))
    steps.append(theirs.TopPLogitsWarper(sampling.top_p))
    steps.append(theirs.MinPLogitsWarper(sampling.min_p))
    for step in steps:
        scores = step(ids, scores)
    return scores[0].numpy()


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a machine that is busy, not of the strategy
@given(
    st.integers(0, 2**32 - 1),
    st.builds(
        Sampling,
        temperature=st.floats(0.1, 3),
        top_k=st.integers(0, 60),
        top_p=st.floats(0.05, 1),
        min_p=st.floats(0, 0.9),
        repetition_penalty=st.floats(0.5, 2),
    ),
)
def test_scores_are_those_of_transformers(seed: int, sampling: Sampling) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 50).astype(np.float32)
    so_far = rng.integers(0, 50, 12).tolist()

    ours, want = processed(logits, so_far, sampling), by_transformers(logits, so_far, sampling)

    assert np.array_equal(np.isneginf(ours), np.isneginf(want)), "other tokens were cut"
    np.testing.assert_allclose(ours[np.isfinite(ours)], want[np.isfinite(want)], rtol=1e-12)


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    drawn = Counter(choose(logits, [], Sampling(temperature=1, seed=1), step) for step in range(4000))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(drawn[token] - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5


def test_what_was_cut_is_never_drawn() -> None:
    logits = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    drawn = {choose(logits, [], Sampling(temperature=5, top_k=2, seed=4), step) for step in range(200)}
    assert drawn == {2, 3}


def test_a_penalty_works_without_temperature_too() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    assert choose(logits, [0], Sampling(repetition_penalty=1.1), 0) == 1
    assert choose(logits, [0], Sampling(), 0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"seed": -1},
    ],
)
def test_values_out_of_range_are_refused_by_name(wrong: dict) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name}=.*expected"):
        Sampling(**wrong)


def test_a_seed_gives_the_same_tokens_whatever_the_threads_and_another_seed_others(model) -> None:
    found = {}
    for threads in (1, 2):
        model.threads = threads
        found[threads] = model.generate(PROMPTS[0], 20, sampling=WARM).ids
    assert found[1] == found[2]
    assert model.generate(PROMPTS[0], 20, sampling=Sampling(temperature=1.3, seed=8)).ids != found[1]
    assert model.generate(PROMPTS[0], 20).ids != found[1]


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_prompts_of_different_lengths_together_give_the_tokens_of_each_alone(model, sampling: Sampling) -> None:
    alone = [model.generate(prompt, 15, sampling=sampling).ids for prompt in PROMPTS]
    stop = alone[0][5]  # the first answer ends early, the others go on
    expected = [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in alone]
    seen: list[list[int]] = [[], [], []]

    together = model.generate_batch(
        PROMPTS, 15, sampling=sampling, stop_ids=(stop,), on_token=lambda row, token: seen[row].append(token)
    )

    assert [result.ids for result in together] == expected == seen
    assert len({len(ids) for ids in expected}) > 1
    assert all(len(result.itl_ms) == len(result.ids) - 1 for result in together)


def test_without_a_limit_an_answer_ends_when_the_cache_is_full_and_not_one_token_later(model) -> None:
    alone = [model.generate(prompt).ids for prompt in PROMPTS]
    assert [len(prompt) + len(ids) for prompt, ids in zip(PROMPTS, alone, strict=True)] == [33] * 3
    assert [result.ids for result in model.generate_batch(PROMPTS)] == alone
    with pytest.raises(InputError, match="the cache holds 0 of context=32; shorten the prompt"):
        model.generate(PROMPTS[0], 29)


def test_no_prompt_at_all_is_refused(model) -> None:
    with pytest.raises(InputError, match="expected at least one prompt"):
        model.generate_batch([])
