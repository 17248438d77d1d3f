"""A compiled language model: the same tokens and logits as PyTorch, however it is fed."""

import sys

import numpy as np
import psutil
import pytest
import torch

import anvil
from anvil import targets
from anvil.errors import InputError, KernelError
from anvil.models import synthetic
from anvil.runtime import open_executor, status
from anvil.runtime.step import Step

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
PROMPT = [5, 17, 3, 88, 42, 7, 7, 61, 30, 2, 11]


@pytest.fixture(scope="module")
def module():
    return synthetic.build(CONFIG, seed=1).module


@pytest.fixture(scope="module")
def model(module):
    return anvil.compile(module, threads=2, max_prefill=13)


def reference(module, ids):
    with torch.no_grad():
        return module(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy(module, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(reference(module, ids)[-1].argmax()))
    return ids[-count:]


def last_logits(model):
    """A copy of the logits behind the decoder's last answer."""
    return model.decoder.logits.copy()


def test_logits_are_those_of_pytorch(model, module):
    np.testing.assert_allclose(model.logits(PROMPT), reference(module, PROMPT), atol=2e-5)


def test_logits_of_a_batch_are_those_of_each_row(model):
    ids = np.array([PROMPT, PROMPT[::-1]])
    for row, logits in zip(ids, model.logits(ids), strict=True):
        assert np.array_equal(logits, model.logits(row.tolist()))


def test_generates_the_tokens_of_pytorch(model, module):
    result = model.generate(PROMPT, 30)
    assert result.ids == greedy(module, PROMPT, 30)
    assert len(set(result.ids)) > 5
    assert len(result.itl_ms) == 29
    assert not result.stopped


def test_generation_stops_after_a_stop_id_and_streams(model):
    free = model.generate(PROMPT, 10).ids
    stop = free[4]
    seen = []
    result = model.generate(PROMPT, 10, stop_ids=(stop,), on_token=seen.append)
    assert result.ids == free[: free.index(stop) + 1] == seen
    assert result.stopped


def test_the_second_generation_is_the_first(model):
    assert model.generate(PROMPT, 10).ids == model.generate(PROMPT, 10).ids


def test_prefill_then_decode_is_prefill_of_all(model):
    model.reset()
    model.prefill(PROMPT[:-1])
    token = model.decode(PROMPT[-1])
    logits = last_logits(model)
    model.reset()
    for one in PROMPT:
        by_steps = model.decode(one)
    assert by_steps == token
    assert np.array_equal(last_logits(model), logits)
    model.reset()
    assert model.prefill(PROMPT) == token
    assert last_logits(model).argmax() == token


def test_a_prompt_in_chunks_gives_the_same_bits(module, model):
    long = (PROMPT * 4)[:40]  # 13 + 13 + 13 + 1
    whole = anvil.compile(module, max_prefill=40)
    for chunked in (model, whole):
        chunked.reset()
        chunked.prefill(long)
    ours, theirs = model.decoder, whole.decoder
    assert model.decode(1) == whole.decode(1)
    assert np.array_equal(last_logits(model), last_logits(whole))
    assert ours.cache.past.tolist() == theirs.cache.past.tolist() == [41]


def test_thread_count_changes_no_bit(model):
    found = {}
    for threads in (1, 2):
        model.threads = threads
        found[threads] = (model.logits(PROMPT), model.generate(PROMPT, 12).ids, last_logits(model))
    assert found[1][1] == found[2][1]
    assert np.array_equal(found[1][0], found[2][0])
    assert np.array_equal(found[1][2], found[2][2])


def test_logits_between_two_decode_steps_leave_the_cache_alone(module):
    model = anvil.compile(module)  # a fresh one, whose memory has not grown yet
    model.prefill(PROMPT)
    token = model.decode(3)
    want = model.decode(token), last_logits(model)
    model.reset()
    model.prefill(PROMPT)
    token = model.decode(3)
    model.logits([1] * 48)
    assert model.decode(token) == want[0]
    assert np.array_equal(last_logits(model), want[1])


def test_sequences_of_a_batch_do_not_see_each_other(model):
    prompts = [PROMPT, PROMPT[:3], [9] * 20]
    alone = [model.generate(prompt, 6).ids for prompt in prompts]
    decoder = model.start(batch=3)
    tokens = decoder.prefill(prompts).copy()
    together = [tokens]
    for _ in range(5):
        tokens = decoder.decode(tokens).copy()
        together.append(tokens)
    assert np.array(together).T.tolist() == alone
    model.start()


def test_residuals_are_those_of_pytorch(model, module):
    with torch.no_grad():
        want = module(torch.tensor([PROMPT]), use_cache=False, output_hidden_states=True).hidden_states
    found = model.residuals(PROMPT)
    assert list(found) == ["model.layers.0", "model.layers.1"]
    np.testing.assert_allclose(found["model.layers.0"], want[1][0].numpy(), atol=2e-5)


def test_facts_account_for_memory_and_work(model, module):
    model.start()
    facts = model.facts()
    linear = sum(p.numel() for n, p in module.named_parameters())
    assert facts["weight_bytes"] >= 4 * linear
    assert facts["kv_bytes"] == 2 * 2 * 48 * 2 * 16 * 4  # layers · (k, v) · context · heads · head_dim · bytes
    assert facts["arena_bytes"] > 0
    assert facts["rows"]["decode"] > 20
    assert set(facts["compile_ms"]) >= {"capture", "fuse", "incrementalise", "lower", "kernels", "pack"}


def test_layers_share_kernels(model):
    rows = model.plans.decode.plan.rows
    assert sum(row.kernel == "linear" for row in rows) == 15
    assert len({row.kernel for row in rows}) < len(rows) / 2


def test_the_token_loop_calls_no_torch(model):
    """Every Python function called while decoding is looked at: none belongs to torch."""
    model.reset()
    token = model.prefill(PROMPT)
    called = set()

    def watch(frame, event, argument):
        if event == "call":
            called.add(frame.f_globals.get("__name__", ""))
        elif event == "c_call":
            called.add(getattr(argument, "__module__", None) or "")

    sys.setprofile(watch)
    try:
        for _ in range(3):
            token = model.decode(token)
    finally:
        sys.setprofile(None)
    assert any(name.startswith("anvil.runtime") for name in called)
    assert not [name for name in called if name.split(".")[0] == "torch"]


def test_a_decode_step_keeps_its_memory(model):
    model.reset()
    token = model.prefill(PROMPT)
    model.decode(token)
    before = model.memory.version, dict(model.memory._blocks)
    for _ in range(5):
        model.decode(token)
    assert (model.memory.version, model.memory._blocks) == before


def test_the_cache_fills_to_the_last_slot_and_refuses_one_more(model):
    model.reset()
    model.prefill([1] * 47)
    model.decode(1)
    with pytest.raises(InputError, match=r"the cache holds 48 of context=48"):
        model.decode(1)


def test_a_prompt_longer_than_the_context_is_refused(model):
    with pytest.raises(InputError, match=r"tokens=49, expected at most context=48"):
        model.prefill([1] * 49)
    with pytest.raises(InputError, match=r"tokens=49, expected at most context=48"):
        model.logits([1] * 49)


def test_new_tokens_must_fit_the_context(model):
    with pytest.raises(InputError, match="shorten the prompt, ask for fewer tokens"):
        model.generate(PROMPT, 40)


def test_a_full_cache_goes_on_with_a_window_of_the_last_ids(model):
    """From where the cache is full, each run of tokens is what the window alone gives as a prompt."""
    whole = model.generate(PROMPT, 80, window=20).ids
    told = [*PROMPT, *whole]
    assert whole[: 49 - len(PROMPT)] == model.generate(PROMPT, 49 - len(PROMPT)).ids
    for full in (49, 78):  # of 48 slots 20 are filled again, which leaves 29 tokens until the next time
        assert told[full : full + 29] == model.generate(told[full - 20 : full], 29).ids[: len(told) - full]


@pytest.mark.parametrize(
    ("prompts", "new_tokens", "window", "words"),
    [
        ([PROMPT], 60, 48, "expected 1 to 47 ids"),
        ([PROMPT, PROMPT], 60, 9, "got 2 prompts, expected one"),
        ([PROMPT], None, 9, "the answer would never end"),
        ([[1] * 49], 60, 9, "expected at most context=48"),
    ],
)
def test_windows_that_cannot_be_are_refused(model, prompts, new_tokens, window, words):
    with pytest.raises(InputError, match=words):
        model.generate_batch(prompts, new_tokens, window=window)


@pytest.mark.parametrize("ids", [[96], [-1], [3, 200]])
def test_ids_outside_the_vocabulary_are_refused(model, ids):
    for feed in (model.prefill, model.logits, lambda ids: model.decode(ids[-1])):
        with pytest.raises(InputError, match=r"expected 0\.\.95"):
            feed(ids)


def test_empty_prompts_are_refused(model):
    model.reset()
    with pytest.raises(InputError, match="expected 1 non-empty"):
        model.prefill([])
    with pytest.raises(InputError, match="expected at least 1"):
        model.generate(PROMPT, 0)
    with pytest.raises(InputError, match="expected \\[batch, tokens"):
        model.logits([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "z80"}, r"target='z80'.*x86_64-avx2"),
        ({"quant": "int3"}, r"quant='int3'.*fp32"),
        ({"attention": "magic"}, r"'magic'.*flash"),
        ({"context": 64}, r"context=64, expected 1\.\.48"),
        ({"context": 0}, "context=0"),
        ({"max_prefill": 0}, "max_prefill=0, expected at least 1"),
        ({"threads": 0}, "threads=0, expected at least 1"),
    ],
)
def test_bad_options_list_the_choices(module, options, message):
    with pytest.raises(InputError, match=message):
        anvil.compile(module, **options)


def test_a_program_that_is_no_language_model_is_refused():
    class Pair(torch.nn.Module):
        def forward(self, ids):
            return ids.float()

    with pytest.raises(InputError, match="expected one tensor"):
        anvil.compile(Pair())


def test_steps_are_reused(model, monkeypatch):
    model.reset()
    token = model.prefill(PROMPT)
    monkeypatch.setattr(Step, "bind", None)
    model.decode(token)


@pytest.mark.parametrize("target", [t.name for t in targets.quick_targets()])
def test_every_target_gives_the_same_bits_and_tokens(model, module, target):
    here = status(targets.get(target))
    if not here.runs:
        pytest.skip(here.reason)
    other = anvil.compile(module, target, threads=2, max_prefill=13)
    assert np.array_equal(other.logits(PROMPT), model.logits(PROMPT))
    assert other.generate(PROMPT, 12).ids == model.generate(PROMPT, 12).ids
    assert np.array_equal(last_logits(other), last_logits(model))


def test_a_model_whose_process_died_starts_again(module, model):
    executor = open_executor(targets.get("x86_64-avx2"), isolated=True)
    before = set(psutil.Process().children())
    remote = anvil.compile(module, executor=executor)
    want = remote.generate(PROMPT, 5).ids
    (process,) = set(psutil.Process().children()) - before
    process.kill()
    with pytest.raises(KernelError, match="process was lost"):
        remote.decode(1)
    assert remote.generate(PROMPT, 5).ids == want == model.generate(PROMPT, 5).ids
    executor.close()
