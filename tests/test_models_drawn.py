"""Weights drawn on demand: the same numbers from the judge and from the compiler, in any order and any part."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anvil import models
from anvil.errors import WeightsError
from anvil.models import counted
from anvil.models import draw as own
from assay.tokens import registry, source, synthetic
from assay.tokens.reference import Reference
from assay.tokens.streaming import FolderWeights
from assay.tokens.tokenizer import load_tokenizer

IDS = [5, 17, 3, 88, 42]
BIG = ("llama-2-7b", "deepseek-r1-distill-qwen-1.5b", "deepseek-r1-distill-qwen-7b", "deepseek-r1-distill-llama-8b")
PARAMETERS = {  # of the published models, counted by hand from their geometry
    "llama-2-7b": 6_738_415_616,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "deepseek-r1-distill-qwen-7b": 7_615_616_512,
    "deepseek-r1-distill-llama-8b": 8_030_261_248,
}


def test_known_numbers() -> None:
    """Written out from the description: Philox4x64-10, four 16-bit parts, one float32 factor."""
    key = np.frombuffer(hashlib.sha256(b"7/w").digest()[:16], dtype="<u8")
    words = [int(word) for word in np.random.Philox(key=key).random_raw(5)]
    sums = [sum(word >> shift & 0xFFFF for shift in (0, 16, 32, 48)) - 131070 for word in words]
    want = np.float32(1) + np.array(sums, np.float32) * np.float32(0.5 * 3**0.5 / 65536)
    assert np.array_equal(own.draw("7/w", 0, 5, 0.5, 1.0), want)


@pytest.mark.parametrize(("first", "last"), [(0, 7), (3, 9), (4, 5), (250, 1_300_000), (262_145, 262_150)])
def test_any_part_is_the_part_of_the_whole_that_the_judge_draws(first: int, last: int) -> None:
    whole = synthetic.draw("5/layer", 1_300_000, 0.02)
    assert np.array_equal(own.draw("5/layer", first, last, 0.02), whole[first:last])


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of llama-tiny with weights on demand."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    return source.resolve(replace(registry.model("llama-tiny"), streamed=True))


def test_a_folder_on_demand_is_the_model_of_the_folder_with_weights(tiny: Path) -> None:
    stored = source.resolve(registry.model("llama-tiny"))
    assert sum(file.stat().st_size for file in tiny.iterdir()) < 100_000
    held, drawn, judged = models.load(str(stored)), models.load(str(tiny)), FolderWeights(tiny)
    assert held.parameters == drawn.parameters
    for name in held.parameters:
        want = held.weights.originals[name].whole().numpy()
        assert np.array_equal(drawn.weights.originals[name].whole().numpy(), want), name
        assert np.array_equal(judged(name).numpy(), want), name
    assert source.weights_hash(tiny) != source.weights_hash(stored)


def test_pytorch_streams_what_is_drawn(tiny: Path) -> None:
    stored = source.resolve(registry.model("llama-tiny"))
    want = Reference.eager(stored).logits(IDS)
    assert np.array_equal(Reference.eager(tiny, streamed=True).logits(IDS), want)


@pytest.mark.parametrize(
    ("change", "message"), [({"recipe": 99}, "has recipe=99, expected 1"), ({"seed": None}, "is damaged")]
)
def test_another_recipe_is_refused(tiny: Path, change: dict[str, object], message: str) -> None:
    file = tiny / counted.FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(WeightsError, match=message):
        models.load(str(tiny))


@pytest.mark.parametrize("name", BIG)
def test_a_large_model_has_its_published_size(name: str) -> None:
    spec = registry.model(name)
    path = source.resolve(spec)
    load_tokenizer(path)  # refuses one that is not the model's
    loaded = models.load(str(path))
    assert sum(np.prod(shape) for shape in loaded.parameters.values()) == PARAMETERS[name]
    assert all(original.shape == loaded.parameters[key] for key, original in loaded.weights.originals.items())
    biased = {key.split(".")[-2] for key in loaded.parameters if key.endswith("bias")}
    assert biased == ({"q_proj", "k_proj", "v_proj"} if "qwen" in name else set())


@pytest.mark.parametrize("vocabulary", [259, 260, 32000])
def test_special_tokens_have_their_ids_in_a_vocabulary_of_any_size(vocabulary: int) -> None:
    tokenizer = synthetic.byte_tokenizer(vocabulary)
    assert [tokenizer.token_to_id(text) for text in synthetic.SPECIAL] == [256, 257, 258]
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocabulary))
    assert tokenizer.encode("<|bos|>a<300>").ids[0] == 256
    assert max(tokenizer.encode("a<300>").ids) < 256


@pytest.mark.parametrize("name", BIG)
def test_two_layers_of_a_large_model_compute_what_pytorch_does(name: str) -> None:
    """At a sixteenth of the width and of the words: the geometry's ratios, biases and rotary frequencies are kept."""
    import anvil

    config = dict(registry.model(name).config)
    heads = config["num_attention_heads"]
    config |= {"head_dim": 16, "hidden_size": 16 * heads, "vocab_size": 512, "num_hidden_layers": 2}
    config |= {"intermediate_size": config["intermediate_size"] // 16 + 4}
    folder = synthetic.synthetic_folder(f"{name}-slice", config, 3, on_demand=True)
    loaded = models.load(str(folder))
    got = anvil.compile(loaded, context=64).logits(IDS)
    want = Reference(folder, streamed=True).logits(IDS)
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
