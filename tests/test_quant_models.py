"""Whole models in every quantisation mode: which weight is in which mode, and a file run as it lies."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from test_quant_kernels import KINDS

import anvil
from anvil import quant
from anvil.errors import InputError, WeightsError
from anvil.models import LoadedModel, synthetic
from anvil.models.gguf_weights import GgufTensors
from anvil.models.weights import Weights, check_shapes
from anvil.quant import Stored
from anvil.runtime.original import Original

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "initializer_range": 0.2,
}
PROMPT = [5, 17, 3, 88, 42, 7, 7, 61, 30, 2, 11]


@pytest.fixture(scope="module")
def tied() -> torch.nn.Module:
    return synthetic.build(CONFIG | {"tie_word_embeddings": True}, seed=1).module


@pytest.fixture(scope="module")
def untied() -> torch.nn.Module:
    return synthetic.build(CONFIG | {"tie_word_embeddings": False}, seed=2).module


def is_table(name: str) -> bool:
    return "embed_tokens" in name or "lm_head" in name


def rounded(module: torch.nn.Module, mode: str, table: str) -> torch.nn.Module:
    """A copy in PyTorch whose matrices hold what the modes make of them."""
    twin = copy.deepcopy(module)
    for name, weight in twin.named_parameters():
        if weight.ndim == 2:
            own = quant.get(table if is_table(name) else mode)
            weight.copy_(own.dequantise(own.quantise(weight)).float())
    activations = quant.get(mode).activations
    if activations is not None:
        for name, layer in twin.named_modules():
            if isinstance(layer, torch.nn.Linear) and not is_table(name):
                layer.register_forward_pre_hook(lambda _, inputs: (activations.rounded(inputs[0]).float(),))
    return twin


def logits(module: torch.nn.Module, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return module(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("mode", KINDS)  # every mode is a kernel in test_quant_kernels.py
def test_a_model_computes_with_the_dequantised_weights(tied: torch.nn.Module, mode: str) -> None:
    model = anvil.compile(tied, quant=mode, threads=2)
    twin = rounded(tied, mode, quant.get(mode).tied or quant.get(mode).table or mode)
    want = logits(twin, PROMPT)
    np.testing.assert_allclose(model.logits(PROMPT), want, atol=2e-6 * np.abs(want).max() * 10)
    assert np.abs(want - logits(tied, PROMPT)).max() > 0
    token = model.prefill(PROMPT)
    assert token == want[-1].argmax()
    assert model.decode(token) == logits(twin, [*PROMPT, token])[-1].argmax()


def test_activations_are_rounded_once_for_all_that_read_them(tied: torch.nn.Module) -> None:
    """A layer has four different inputs of linear layers: of q, k and v; of o; of gate and up; of down."""
    plan = anvil.compile(tied, quant="w8a8").plans.decode.plan
    kernels = [row.kernel for row in plan.rows]
    assert sum(name.startswith("quantise_rows") for name in kernels) == 4
    assert sum(name == "linear_w8a8" for name in kernels) == 7


def test_every_tensor_is_listed_with_mode_bytes_and_error(untied: torch.nn.Module) -> None:
    model = anvil.compile(untied, quant="w4-g32", measure_weights=True)
    rows = {row.parameter: row for row in model.weights}
    assert rows.keys() == {name for kind in (untied.named_parameters, untied.named_buffers) for name, _ in kind()} - {
        "model.rotary_emb.original_inv_freq"
    }
    for name, row in rows.items():
        assert row.mode == ("f32" if len(row.shape) == 1 else "w4-g32"), name
        assert not row.as_stored
    assert sum(row.nbytes for row in rows.values()) == model.facts()["weight_bytes"]
    assert all(rows[name].nmse == 0 for name in rows if name.endswith("norm.weight"))
    assert 2e-3 < rows["model.layers.0.mlp.up_proj.weight"].nmse < 2e-2
    assert all(2e-3 < rows[name].nmse < 2e-2 for name in ("lm_head.weight", "model.embed_tokens.weight"))


def test_a_matrix_that_is_both_table_and_head_is_in_a_mode_of_its_own(tied: torch.nn.Module) -> None:
    modes = {row.parameter: row.mode for row in anvil.compile(tied, quant="w4-g32").weights if len(row.shape) == 2}
    assert modes.pop("model.embed_tokens.weight") == "q8_0"
    assert modes.pop("lm_head.weight", "q8_0") == "q8_0" and set(modes.values()) == {"w4-g32"}


def test_an_error_that_was_not_measured_is_not_zero(tied: torch.nn.Module) -> None:
    assert all(np.isnan(row.nmse) for row in anvil.compile(tied, quant="w8").weights)


def stored_in(mode: str, module: torch.nn.Module) -> LoadedModel:
    """The module as if loaded from a file that holds its matrices in ``mode``; its own values are those of the file."""
    own = quant.get(mode)
    stored = {}
    twin = copy.deepcopy(module)
    for name, weight in twin.named_parameters():
        if weight.ndim == 2:
            numbers = own.quantise(weight)
            stored[name] = Stored(mode, functools.partial(lambda held: held, numbers))
            weight.copy_(own.dequantise(numbers).float())
    held = {name: Original.of(value) for name, value in twin.state_dict().items()}
    weights = Weights(f"{mode} {id(twin)}", lambda: held, lambda: stored)
    return LoadedModel("a test", twin.config.to_dict(), weights, lambda: twin)


def test_a_file_is_run_as_it_lies(tied: torch.nn.Module) -> None:
    loaded = stored_in("q4_1", tied)
    model = anvil.compile(loaded, quant="gguf", measure_weights=True)
    assert {row.mode for row in model.weights if row.as_stored} == {"q4_1"}
    assert all(row.as_stored for row in model.weights if len(row.shape) == 2)
    assert max(row.nmse for row in model.weights) < 1e-13
    want = logits(loaded.module, PROMPT)
    np.testing.assert_allclose(model.logits(PROMPT), want, atol=2e-5 * np.abs(want).max())


def test_a_mode_takes_from_the_file_what_is_in_it(tied: torch.nn.Module) -> None:
    """Asked for q4_1, with tables in q8_0: matrices come from the file, the table is quantised."""
    model = anvil.compile(stored_in("q4_1", tied), quant="q4_1")
    assert {(row.mode, row.as_stored) for row in model.weights if len(row.shape) == 2} == {
        ("q4_1", True),
        ("q8_0", False),
    }


def test_a_model_without_stored_weights_cannot_run_as_stored(tied: torch.nn.Module) -> None:
    with pytest.raises(InputError, match=r"quant='gguf' runs quantised weights as their file holds them"):
        anvil.compile(tied, quant="gguf")


def test_an_unknown_mode_is_refused_before_any_work(tied: torch.nn.Module) -> None:
    with pytest.raises(InputError, match=r"quant='q3_z' is unknown; expected one of \[.*'q4_1'.*'gguf'\]"):
        anvil.compile(tied, quant="q3_z")


def gguf_reader(path: Path, tensors: dict[str, tuple[str, torch.Tensor]]) -> gguf.GGUFReader:
    """A file of matrices (mode, values) by GGUF name, opened."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (mode, weight) in tensors.items():
        own = quant.get(mode)
        raw = own.file.write(own.quantise(weight)).flatten(1).numpy()
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[own.file.kind])
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return gguf.GGUFReader(path)


def test_blocks_are_found_by_name_and_their_rows_put_in_order(tied: torch.nn.Module, tmp_path: Path) -> None:
    module = rounded(tied, "q4_0", "q8_0")
    q = module.get_parameter("model.layers.0.self_attn.q_proj.weight")
    heads = module.config.num_attention_heads
    pairs = q.reshape(heads, 2, 64 // heads // 2, 64).transpose(1, 2).reshape(64, 64)  # as files hold rotary pairs
    tensors = {
        "token_embd.weight": ("q8_0", module.get_parameter("model.embed_tokens.weight")),
        "blk.0.attn_q.weight": ("q4_0", pairs),
        "blk.0.ffn_up.weight": ("q4_0", module.get_parameter("model.layers.0.mlp.up_proj.weight")),
    }
    weights = file_weights(gguf_reader(tmp_path / "m.gguf", tensors), module)
    assert {name: stored.mode for name, stored in weights.stored.items()} == {
        "model.embed_tokens.weight": "q8_0",
        "model.layers.0.self_attn.q_proj.weight": "q4_0",
        "model.layers.0.mlp.up_proj.weight": "q4_0",
    }
    for name, stored in weights.stored.items():
        values = quant.get(stored.mode).dequantise(stored.read()).float()
        assert torch.equal(values, module.get_parameter(name)), name
        original = weights.originals[name]
        assert torch.equal(original.whole(), module.get_parameter(name)), name
        assert torch.equal(original.rows(3, 9), module.get_parameter(name)[3:9]), name


def test_blocks_of_another_shape_than_the_parameter_are_refused(tied: torch.nn.Module, tmp_path: Path) -> None:
    reader = gguf_reader(tmp_path / "n.gguf", {"blk.0.ffn_up.weight": ("q4_0", torch.ones(95, 64))})
    held = file_weights(reader, tied).originals
    with pytest.raises(WeightsError, match=r"first: model.layers.0.mlp.up_proj.weight has shape=\(95, 64\), expected"):
        check_shapes({"model.layers.0.mlp.up_proj.weight": (96, 64)}, held, "a file")


def file_weights(reader: gguf.GGUFReader, module: torch.nn.Module) -> Weights:
    tensors = GgufTensors(lambda: reader, lambda: module.config, lambda: tuple(module.state_dict()))
    return Weights("a test", tensors.originals, tensors.stored)
