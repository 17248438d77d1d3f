"""The stored golden: whole or not at all, tied to its weights and prompts, and honest about what moved."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import runpy
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from safetensors.numpy import load_file

from assay.errors import UsageError, WeightsError
from assay.tokens import make_golden as maker
from assay.tokens import registry, source
from assay.tokens.golden import Golden, check_belongs, check_prompts, load_golden
from assay.tokens.moved import difference, ulps
from assay.tokens.reference import Reference
from assay.tokens.spec import ModelSpec, Prompt
from assay.tokens.synthetic import draw
from assay.tokens.tokenizer import load_tokenizer
from assay.tokens.tolerance import mode

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tiny() -> ModelSpec:
    return registry.model("llama-tiny")


@pytest.fixture(scope="module")
def stored(tiny: ModelSpec) -> Golden:
    return load_golden(registry.golden_path(tiny))


def numpy_llama(folder: Path, ids: list[int]) -> np.ndarray:
    """float64 logits of a LLaMA over ``ids``, written from the formulas; the rotary tables are rounded to float32."""
    config = json.loads((folder / "config.json").read_text())
    w = {name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()}
    d, length = config["head_dim"], len(ids)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    theta = np.float32(config["rope_parameters"]["rope_theta"])
    inverse = np.float32(1) / theta ** (np.arange(0, d, 2, dtype=np.float32) / np.float32(d))
    angles = np.concatenate([np.arange(length, dtype=np.float32)[:, None] * inverse] * 2, axis=1)
    cos, sin = np.cos(angles).astype(np.float64), np.sin(angles).astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * w[name]

    def rotate(x: np.ndarray) -> np.ndarray:
        return x * cos + np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1) * sin

    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        p = f"model.layers.{index}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (
            (h @ w[f"{p}self_attn.{name}_proj.weight"].T).reshape(length, -1, d).transpose(1, 0, 2) for name in "qkv"
        )
        k, v = (np.repeat(t, heads // kv_heads, axis=0) for t in (rotate(k), v))
        scores = rotate(q) @ k.transpose(0, 2, 1) / np.sqrt(d)
        scores[:, np.triu_indices(length, 1)[0], np.triu_indices(length, 1)[1]] = -np.inf
        mixed = (scipy.special.softmax(scores, axis=-1) @ v).transpose(1, 0, 2).reshape(length, -1)
        x = x + mixed @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate * scipy.special.expit(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


def test_the_float64_reference_is_float64_all_the_way(tiny: ModelSpec, stored: Golden) -> None:
    """Norms and softmax of the model's code pin themselves to float32; the reference must not follow them.

    The rotary tables are float32 on both sides, and may differ by an ulp of the angle: 6e-8 x 256 positions.
    """
    path, ids = source.resolve(tiny), stored.prompts[4].ids[:20].tolist()

    error = np.abs(Reference(path).logits(ids) - numpy_llama(path, ids)).max()

    assert error < 2e-6, "eager float32 would be 1e-5 off"


def test_a_golden_is_what_pytorch_says_today(tiny: ModelSpec, stored: Golden) -> None:
    short = replace(tiny, prompts=tiny.prompts[2:4], positions=0)
    made = maker.make_golden(short, source.resolve(tiny))
    kept = replace(stored, prompts=stored.prompts[2:4], corpus=())
    assert [line for line in difference(kept, made) if not line.startswith("host")] == []


def test_saving_and_loading_keep_every_bit(stored: Golden, tmp_path: Path) -> None:
    stored.save(tmp_path / "g.safetensors")
    again = load_golden(tmp_path / "g.safetensors")
    assert difference(stored, again) == []
    assert again.provenance == stored.provenance and again.layers == stored.layers


def test_a_writer_that_is_interrupted_leaves_the_old_golden(stored: Golden, tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "g.safetensors"
    stored.save(target)
    before = target.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        replace(stored, model="other").save(target)

    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_killed_at_any_moment_a_whole_golden_stands(stored: Golden, tmp_path: Path) -> None:
    """A process that does nothing but write goldens is killed again and again, most often in the middle of a write."""
    target = tmp_path / "g.safetensors"
    stored.save(target)
    versions = [replace(stored, provenance={**stored.provenance, "torch": name}) for name in ("a", "b")]
    context = multiprocessing.get_context("fork")
    left_behind = 0
    for attempt in range(12):
        writer = context.Process(target=_save_for_ever, args=(versions, target))
        writer.start()
        time.sleep(0.02 + 0.003 * attempt)
        writer.kill()
        writer.join()
        left_behind += len(list(tmp_path.iterdir())) - 1
        found = load_golden(target)
        assert difference(replace(found, provenance={}), replace(stored, provenance={})) == []
    assert left_behind, "no writer was killed while it wrote: the test showed nothing"
    stored.save(target)
    assert list(tmp_path.iterdir()) == [target], "what killed writers left behind is swept away"


def _save_for_ever(versions: list[Golden], target: Path) -> None:
    for golden in itertools.cycle(versions):
        golden.save(target)


def test_difference_counts_ulps_and_tensors_and_says_why(stored: Golden) -> None:
    first = stored.prompts[0]
    nudged = first.logsumexp.copy()
    nudged[3] = np.nextafter(nudged[3], np.float32(np.inf))
    moved = replace(
        stored,
        prompts=(replace(first, logsumexp=nudged), *stored.prompts[1:]),
        provenance={**stored.provenance, "torch": "9.9"},
    )

    lines = difference(stored, moved)

    assert lines[0] == f"at most 1 ulp in 1 of {len(stored.tensors())} tensors, worst p00.logsumexp"
    assert lines[1] == f"torch {stored.provenance['torch']} -> 9.9"


def test_difference_names_the_first_token_that_moved(stored: Golden) -> None:
    first = stored.prompts[0]
    ids = first.ids.copy()
    ids[60] += 1
    lines = difference(stored, replace(stored, prompts=(replace(first, ids=ids), *stored.prompts[1:])))
    assert lines[0] == f"p00.ids: 1 of {len(ids)} differ, first at (60,)"


def test_ulps_counts_representable_numbers_across_zero() -> None:
    tiny = np.float32(1e-45)
    assert ulps(np.array([-tiny, 1.0], np.float32), np.array([tiny, 1 + 2**-23], np.float32)).tolist() == [2, 1]


def test_a_golden_of_another_model_mode_seed_or_weights_is_refused(tiny: ModelSpec, stored: Golden) -> None:
    weights = stored.provenance["weights_sha256"]
    check_belongs(stored, tiny, "fp32", weights)
    with pytest.raises(WeightsError, match="of other weights"):
        check_belongs(stored, tiny, "fp32", "0" * 64)
    with pytest.raises(WeightsError, match="the file holds that of model=llama-tiny quant=fp32"):
        check_belongs(stored, tiny, "w8", weights)
    with pytest.raises(WeightsError, match="it is of seed=5, the weights are of seed=6"):
        check_belongs(stored, replace(tiny, source="synthetic:6"), "fp32", weights)


def test_other_prompts_and_the_tokenizer_of_another_model_are_refused(tiny: ModelSpec, stored: Golden) -> None:
    own = load_tokenizer(source.resolve(tiny))
    check_prompts(stored, tiny, own)
    with pytest.raises(WeightsError, match="of other prompts"):
        check_prompts(stored, replace(tiny, prompts=tiny.prompts[1:]), own)
    other = load_tokenizer(source.resolve(registry.model("smollm2-135m")))
    raw = replace(stored, prompts=stored.prompts[2:])  # without a chat template, which would differ first
    with pytest.raises(WeightsError, match=r"tokenizer of another model: prompt 2 gives \d ids, the golden has 5"):
        check_prompts(raw, tiny, other)


def test_every_stored_golden_belongs_to_its_model(subtests) -> None:
    for spec in registry.models().values():
        for quant in spec.quants:
            with subtests.test(model=spec.name, quant=quant):
                path = source.resolve(spec)
                golden = load_golden(registry.golden_path(spec, quant))
                check_belongs(golden, spec, quant, source.weights_hash(path))
                check_prompts(golden, spec, load_tokenizer(path))
                # of a streamed model in fp32 only the fixed text: nobody proposed ids
                assert len(golden.prompts) >= (4 if quant != "fp32" else 0 if spec.streamed else 6)
                assert all(len(p.new_ids) >= 64 for p in golden.prompts)
                wanted = mode(quant).certified_tokens(spec.certified_tokens)
                assert all(p.certified(quant) >= wanted for p in golden.prompts)


@pytest.mark.parametrize("damage", ["missing", "cut", "format"])
def test_a_damaged_golden_is_refused(stored: Golden, tmp_path: Path, damage: str) -> None:
    target = tmp_path / "g.safetensors"
    if damage != "missing":
        stored.save(target)
        data = target.read_bytes()
        target.write_bytes(
            data[: len(data) // 2] if damage == "cut" else data.replace(b'\\"format\\": 2', b'\\"format\\": 9')
        )
    message = {"missing": "no such file", "cut": "damaged", "format": "format=9, expected 2"}[damage]
    with pytest.raises(WeightsError, match=message):
        load_golden(target)


def test_prompts_that_certify_too_little_or_do_not_fit_are_refused(tiny: ModelSpec) -> None:
    path = source.resolve(tiny)
    one = replace(tiny, positions=0, prompts=(Prompt("anvil", chat=False),), new_tokens=4)
    with pytest.raises(UsageError, match="margins certify 4 tokens, expected at least 5"):
        maker.make_golden(replace(one, certified_tokens=5), path)
    with pytest.raises(UsageError, match=r"5 tokens \+ 4 > 8"):
        maker.make_golden(replace(one, context=8), path)
    with pytest.raises(UsageError, match="expected 'Paris' in the answer"):
        maker.make_golden(
            replace(one, certified_tokens=1, prompts=(Prompt("anvil", chat=False, expect="Paris"),)), path
        )


def test_regenerate_check_reports_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A project of one model with a golden that has one wrong number: exit code 1, a line that says where, no write."""
    (tmp_path / "e2e").mkdir()
    (tmp_path / "golden").mkdir()
    model_file = (
        (ROOT / "e2e" / "llama_tiny.py")
        .read_text()
        .replace("    prompts=(", "    new_tokens=4, certified_tokens=2, positions=0, quant_prompts=1,\n    prompts=(")
    )
    (tmp_path / "e2e" / "llama_tiny.py").write_text(model_file)
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path))
    command = runpy.run_path(str(ROOT / "golden" / "regenerate.py"))["main"]

    def run(*options: str) -> tuple[int, str]:
        return command(["--model", "llama-tiny", "--quant", "w8", *options]), capsys.readouterr().out

    assert run()[0] == 1  # nothing was stored
    target = tmp_path / "golden" / "llama-tiny-w8.safetensors"
    golden = load_golden(target)
    margins = golden.prompts[0].margins * np.float32(1.5)
    replace(golden, prompts=(replace(golden.prompts[0], margins=margins),)).save(target)
    before = target.read_bytes()

    code, printed = run("--check")
    assert code == 1 and "worst p00.margins" in printed
    assert target.read_bytes() == before

    golden.save(target)
    code, printed = run("--check")
    assert code == 0 and "unchanged, 7 tensors" in printed


def test_synthetic_weights_depend_on_seed_and_name_alone() -> None:
    a = draw("5/w", 12, 0.5)
    assert np.array_equal(a, draw("5/w", 12, 0.5))
    assert not np.array_equal(a, draw("6/w", 12, 0.5))
    assert not np.array_equal(a, draw("5/v", 12, 0.5))
    assert a[:4].view(np.uint32).tolist() == draw("5/w", 4, 0.5).view(np.uint32).tolist()
    assert abs(draw("5/w", 100_000, 0.5).std() - 0.5) < 0.005
