"""Weights that cannot be used: one message, exit code 3, before any long work. Compiling, timed and counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

import anvil
import anvil.model_trace
from anvil import models
from anvil.models import synthetic
from assay.cli import app
from assay.tokens import registry, source
from assay.tokens.golden import load_golden
from assay.tokens.reference import load_module
from assay.tokens.synthetic import byte_tokenizer
from assay.tokens.tokenizer import load_tokenizer

ASK = ("generate", "--model", "llama-tiny", "--prompt", "x", "--raw", "--max-new-tokens", "2")
UP = "model.layers.1.mlp.up_proj.weight"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """llama-tiny as a Hugging Face folder of several shards. Whoever traces a graph of it has begun the long work."""
    held = source.resolve(registry.model("llama-tiny"))
    copy = tmp_path / "model"
    models.load(str(held)).module.save_pretrained(copy, max_shard_size="300KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(held / name, copy / name)
    return copy


@pytest.fixture
def no_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anvil.model_plans.cache.look_up", lambda name: None)
    monkeypatch.setattr("anvil.model_plans._traced_once", lambda *_: pytest.fail("tracing has begun"))


def refused(folder: Path) -> str:
    result = run(*ASK, "--weights", str(folder))
    assert result.exit_code == 3, result.output + result.stderr
    message = " ".join(result.stderr.split())
    assert message.startswith("error:") and message.count("error:") == 1
    return message


def shard_of(folder: Path, name: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][name]


def change(folder: Path, name: str, value: torch.Tensor) -> None:
    shard = shard_of(folder, name)
    save_file({**load_file(shard), name: value}, shard, metadata={"format": "pt"})


def test_a_sharded_folder_gives_the_tokens_of_the_model_it_was_written_from(folder: Path) -> None:
    assert len(list(folder.glob("*.safetensors"))) > 2
    want, got = run(*ASK, "--json"), run(*ASK, "--weights", str(folder), "--json")
    assert json.loads(got.stdout)["tokens"] == json.loads(want.stdout)["tokens"]


def test_a_trained_model_written_as_shards_says_what_its_own_file_says(tmp_path: Path) -> None:
    spec = registry.model("smollm2-135m")
    file, folder = source.resolve(spec), tmp_path / "model"
    load_module(file).save_pretrained(folder, max_shard_size="200MB")
    tokenizer = load_tokenizer(file)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    facts = {"chat_template": tokenizer.template, "bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    asked = ("--prompt", spec.prompts[0].text, "--max-new-tokens", "8", "--json")
    said = run("generate", "--model", spec.name, "--weights", str(folder), *asked)
    golden = load_golden(registry.golden_path(spec)).prompts[0]
    assert json.loads(said.stdout)["tokens"] == golden.new_ids[:8]


@pytest.mark.usefixtures("no_long_work")
def test_a_weight_of_an_unsupported_type(folder: Path) -> None:
    change(folder, UP, torch.zeros(172, 96, dtype=torch.int8))
    assert f"weight={UP} in shard=model-0" in (message := refused(folder))
    assert "dtype=I8, expected one of F64, F32, F16, BF16" in message


@pytest.mark.usefixtures("no_long_work")
def test_weights_of_another_geometry_than_the_configuration(folder: Path) -> None:
    change(folder, UP, torch.zeros(171, 96))
    assert f"first: {UP} has shape=(171, 96), expected (172, 96)" in refused(folder)


@pytest.mark.usefixtures("no_long_work")
def test_a_missing_shard(folder: Path) -> None:
    shard = shard_of(folder, UP)
    shard.unlink()
    assert f"shard {shard.name} is missing" in refused(folder)


@pytest.mark.usefixtures("no_long_work")
def test_a_shard_cut_short(folder: Path) -> None:
    shard = shard_of(folder, UP)
    shard.write_bytes(shard.read_bytes()[:-4])
    assert shard.name in (message := refused(folder))
    assert "cut short" in message


def test_a_weight_that_is_nan(folder: Path) -> None:
    value = load_file(shard_of(folder, UP))[UP].clone()
    value[5, 6] = float("nan")
    change(folder, UP, value)
    assert f"weight={UP} holds 1 values that are NaN or infinite, the first at [5, 6]" in refused(folder)


@pytest.mark.usefixtures("no_long_work")
def test_a_tokenizer_with_more_words_than_the_model(folder: Path) -> None:
    byte_tokenizer(300).save(str(folder / "tokenizer.json"))
    assert "it has id=299, and config.json says vocab_size=259" in refused(folder)


@pytest.mark.usefixtures("no_long_work")
def test_a_tokenizer_whose_stop_token_is_another(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 65}))
    assert "config.json says eos_token_id=65, which is no special token of it" in refused(folder)


TINY = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
}


def test_what_a_cold_and_a_cached_start_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: layers share kernels, a cached start traces no graph and compiles no kernel."""
    monkeypatch.setenv("ANVIL_CACHE", str(tmp_path))
    traced = []
    original = anvil.model_trace.capture
    monkeypatch.setattr("anvil.model_trace.capture", lambda *a, **k: traced.append(1) or original(*a, **k))
    cold = anvil.compile(synthetic.build(TINY, seed=6)).facts()
    assert len(traced) == 1
    assert set(cold["kernel_ms"]) and len(cold["kernel_ms"]) == cold["kernels"] <= 20
    assert all(ms > 0 for ms in cold["kernel_ms"].values())
    cached = anvil.compile(synthetic.build(TINY, seed=6)).facts()
    assert len(traced) == 1
    assert cached["kernel_ms"] == {} and set(cached["compile_ms"]) == {"look up", "kernels", "pack"}
    deeper = anvil.compile(synthetic.build(TINY | {"num_hidden_layers": 6}, seed=6)).facts()
    assert deeper["kernel_ms"] == {}, "more layers need no other kernels"
    assert deeper["kernels"] == cold["kernels"]


def test_metadata_of_alike_calls_is_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the layers must not mean twice the work of propagating shapes."""
    from anvil.graph import inference

    calls = []
    original = inference._call
    monkeypatch.setattr(inference, "_call", lambda *a: calls.append(1) or original(*a))
    counts = []
    for layers in (2, 4):
        calls.clear()
        anvil.compile(synthetic.build(TINY | {"num_hidden_layers": layers}, seed=8).module)
        counts.append(len(calls))
    assert counts[1] - counts[0] <= 8, counts


def test_the_command_prints_stages_and_kernels_and_keeps_to_a_budget() -> None:
    """5 s cold and 0.5 s from the cache, in CPU seconds and three times over: machines and their load differ."""
    result = run("compile", "--model", "llama-tiny", "--cold", "--budget", "15")
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "capture" in words and "linear" in words and "distinct kernels" in words
    again = json.loads(run("compile", "--model", "llama-tiny", "--json").stdout)
    assert again["kernels"] > 0 and again["wall_ms"] > 0 and again["cpu_s"] > 0
    cached = run("compile", "--model", "llama-tiny", "--budget", "1.5")
    assert cached.exit_code == 0, cached.output
    over = run("compile", "--model", "llama-tiny", "--budget", "0.001")
    assert over.exit_code == 1 and "s of CPU, expected at most --budget=0.001" in over.output


def test_a_generation_says_what_memory_it_took() -> None:
    data = json.loads(run(*ASK, "--json").stdout)
    assert data["kv_bytes"] == 256 * 4 * 2 * 2 * 16 * 4  # positions, layers, k and v, heads, width, bytes
    assert data["weight_bytes"] > 0 and data["arena_bytes"] > 0
    assert 0 <= data["model_rss_bytes"] < data["peak_rss_bytes"]
