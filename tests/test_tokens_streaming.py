"""A model that is read module by module gives what the same model in memory gives, and never holds two modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from assay.errors import WeightsError
from assay.reference.quantise import MODES
from assay.tokens import registry, source
from assay.tokens.golden import load_golden
from assay.tokens.quantised import emulation
from assay.tokens.reference import Reference
from assay.tokens.streaming import FolderWeights
from assay.tokens.synthetic import synthetic_folder

IDS = [[97, 110, 118, 105, 108], list(range(60, 90)), [256]]


@pytest.fixture(scope="module")
def spec():
    return registry.model("llama-tiny")


@pytest.fixture(scope="module")
def path(spec) -> Path:
    return source.resolve(spec)


@pytest.fixture(scope="module")
def streamed(path: Path) -> Reference:
    return Reference(path, streamed=True)


def test_sequences_of_different_lengths_in_one_pass_are_each_as_alone(path: Path, streamed: Reference) -> None:
    whole = Reference(path)
    names = (*whole.layers, "model.layers.1.self_attn.o_proj:in")
    for ids, ours, want in zip(IDS, streamed.passes(IDS, names), whole.passes(IDS, names), strict=True):
        assert ours.logits.shape == (len(ids), 259)
        np.testing.assert_allclose(ours.logits, want.logits, rtol=0, atol=1e-12)
        for name in names:
            np.testing.assert_allclose(ours.seen[name], want.seen[name], rtol=0, atol=1e-12)


def test_no_more_than_one_modules_weights_exist_at_a_time(path: Path, streamed: Reference) -> None:
    held: list[list[str]] = []

    def look(module: nn.Module, *_: object) -> None:
        held.append([name for name, p in streamed.module.named_parameters() if p.device.type != "meta"])

    handles = [m.register_forward_hook(look, prepend=True) for m in streamed.module.modules() if m._parameters]
    try:
        list(streamed.passes(IDS[:1]))
    finally:
        for handle in handles:
            handle.remove()
    assert len(held) == 4 * 9 + 3  # per layer seven linear ones and two norms; embedding, last norm, head
    assert all(len(names) == 1 for names in held)
    assert all(parameter.device.type == "meta" for parameter in streamed.module.parameters())


def test_a_module_that_fails_does_not_keep_its_weights(path: Path) -> None:
    reference = Reference(path, streamed=True)
    broken = reference.module.get_submodule("model.layers.0.mlp.up_proj")
    broken.forward = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        reference.logits([1, 2])
    assert all(parameter.device.type == "meta" for parameter in reference.module.parameters())


def test_a_quantised_model_is_streamed_with_the_modes_own_numbers(path: Path) -> None:
    golden = load_golden(registry.golden_path(registry.model("llama-tiny"), "w4-g32")).prompts[0]
    logits = Reference(path, emulation=emulation("w4-g32", path), streamed=True).logits(golden.ids.tolist())
    assert (logits.argmax(axis=1) == golden.top_ids[:, 0]).all()
    plain = Reference(path, streamed=True).logits(golden.ids.tolist())
    assert (plain.argmax(axis=1) != golden.top_ids[:, 0]).any()


def test_tied_weights_are_found_under_either_name(tmp_path: Path, spec) -> None:
    folder = synthetic_folder("tied-for-test", {**spec.config, "tie_word_embeddings": True, "num_hidden_layers": 1}, 1)
    ours, want = Reference(folder, streamed=True).logits(IDS[0]), Reference(folder).logits(IDS[0])
    np.testing.assert_allclose(ours, want, rtol=0, atol=1e-12)


def test_a_missing_tensor_is_named(path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no tensor model\.layers\.9\.x; expected the names"):
        FolderWeights(path)("model.layers.9.x")


@pytest.mark.parametrize("streamed", [False, True])
def test_of_a_model_with_two_embeddings_only_the_one_that_is_the_head_is_in_the_mode_for_that(
    tmp_path: Path, streamed: bool
) -> None:
    """Embeddings of positions are tied to nothing."""
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2, initializer_range=0.2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    names = {"transformer.wpe": "w4-g32", "transformer.wte": "q8_0"}
    plain, rounded = (
        next(Reference(tmp_path, emulation=each, streamed=streamed).passes([range(16)], names)).seen
        for each in (None, emulation("w4-g32", tmp_path))
    )
    for name, mode in names.items():
        np.testing.assert_array_equal(rounded[name], MODES[mode].weights(plain[name].astype(np.float32)))
