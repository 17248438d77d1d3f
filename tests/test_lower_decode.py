"""Prefill and decode over a cache through the lowering: the tokens PyTorch chooses, one query on the decode kernel."""

from __future__ import annotations

import pytest
import torch
from lowered import executor
from tiny_models import capture_logits, logits, tiny_llama, token_ids

from anvil import attention, codegen, targets
from anvil.errors import InputError, UnsupportedError
from anvil.frontend.decoding import greedy, last_row
from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import fuse
from anvil.lower import lower
from anvil.runtime.decoder import Decoder
from anvil.runtime.executable import Executable
from anvil.runtime.memory import Memory
from anvil.runtime.pack import Packer

TARGET = targets.get("x86_64-avx2")
STEPS = 9


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def fused(model):
    return fuse(capture_logits(model))


@pytest.fixture(scope="module")
def plans(fused):
    program = greedy(last_row(incrementalise(fused)))
    return program, lower(program, TARGET), lower(program, TARGET, phase="decode")


def test_decoding_chooses_the_tokens_pytorch_chooses(model, plans):
    program, prefill, decode = plans
    library = codegen.compile_library((prefill.kernels | decode.kernels).values(), TARGET)
    memory = Memory(executor(TARGET.name), library)
    pack = Packer("fp32", TARGET)
    steps = [Executable(plan, memory, pack=pack, params=program.params) for plan in (prefill, decode)]
    decoder = Decoder(*steps, batch=2, capacity=32, chunk=8, threads=1)
    ids = token_ids(2, 11)
    chosen = [torch.from_numpy(decoder.prefill(ids.tolist()).copy())]
    while len(chosen) < STEPS:
        chosen.append(torch.from_numpy(decoder.decode(chosen[-1].numpy()).copy()))
    sequence = ids
    for step in range(STEPS):
        assert logits(model, sequence)[:, -1].argmax(-1).equal(chosen[step]), f"step {step}"
        sequence = torch.cat([sequence, chosen[step][:, None]], dim=1)


def test_one_query_runs_the_decode_kernel_and_many_the_chosen_variant(plans):
    _, prefill, decode = plans
    attention = [{row.kernel for row in plan.rows if "attention" in row.kernel} for plan in (prefill, decode)]
    assert [name.split("_")[1] for names in attention for name in names] == ["flash", "decode"]


def test_the_decode_plan_does_not_depend_on_the_number_of_tokens(plans):
    _, prefill, decode = plans
    assert set(prefill.symbols) == {"B", "C", "S"}
    assert set(decode.symbols) == {"B", "C"}


def test_a_cache_is_read_only_after_it_was_appended_to(plans):
    for plan in plans[1:]:
        written: set[str] = set()
        for row in plan.rows:
            caches = [arg.buffer for arg in row.args if getattr(arg, "buffer", "") in _caches(plan)]
            if row.kernel.startswith("kv_append"):
                written.update(caches)
            else:
                assert set(caches) <= written


def _caches(plan):
    return {name for name, buffer in plan.buffers.items() if buffer.role == "cache"}


def test_a_program_without_a_cache_has_no_decode_phase(fused):
    with pytest.raises(InputError, match="make the program incremental first"):
        lower(fused, TARGET, phase="decode")


@pytest.mark.parametrize("name", ["sliding_window", "paged", "mla"])
def test_a_variant_over_another_kind_of_cache_is_refused_by_name(fused, name):
    family = attention.get(name).family
    with pytest.raises(UnsupportedError, match=rf"attention='{name}' reads .*choose one of .*flash.*anvil\.{family}"):
        lower(fused, TARGET, attention=name)


def test_an_unknown_attention_variant_lists_those_that_exist(fused):
    with pytest.raises(InputError, match="flash"):
        lower(fused, TARGET, attention="quadratic")
