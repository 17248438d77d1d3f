"""Without a stored golden: PyTorch verifies now; and the table of a model's modes, with the memory that each holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from assay.backends._torch_model import TorchModel
from assay.cli.tokens import Asked
from assay.errors import UsageError
from assay.measure import model_table
from assay.measure.model_table import COLUMNS, mode_row
from assay.measure.resident import Held
from assay.tokens import live, registry, source
from assay.tokens.live import Live
from assay.tokens.make_golden import make_golden
from assay.tokens.reference import Reference
from assay.tokens.spec import Prompt
from assay.tokens.stage import TokenStage
from assay.tokens.streaming import FolderWeights

SPEC = replace(
    registry.model("llama-tiny").first_layers(2),
    prompts=(Prompt("anvil", chat=False), Prompt("0123", chat=False)),
    new_tokens=6,
    certified_tokens=2,
    positions=0,
)


class OneWrong(TorchModel):
    """Its third token is another one than its logits say."""

    fed = 0

    def decode(self, token: int) -> int:
        self.fed += 1
        return (super().decode(token) + (self.fed == 2)) % self.vocabulary


def faults_of(kind: type[TorchModel]) -> list[list[str]]:
    stage, model = Live(SPEC, None, lambda path, _: kind(str(path)), "a compiler").stage("fp32")
    assert stage.golden.provenance["ids"].startswith("drafted by a compiler fp32, each verified")
    return [result.failures for result in stage.prompts(model)]


def test_a_right_model_is_verified_by_pytorch_now() -> None:
    assert faults_of(TorchModel) == [[], []]


@pytest.mark.parametrize(
    ("prompts", "corpus", "words"),
    [("", False, "add --corpus, or --live"), ("0", True, "leave --prompts out, or --live")],
)
def test_a_golden_without_prompts_says_what_can_be_asked_of_it(prompts: str, corpus: bool, words: str) -> None:
    stage = cast(TokenStage, SimpleNamespace(spec=SPEC, quant="fp32", golden=SimpleNamespace(prompts=())))
    with pytest.raises(UsageError, match=words):
        Asked(prompts, None, corpus=corpus, layers=False).check(stage)


def test_a_wrong_token_is_found_where_the_model_itself_proposed_it() -> None:
    wrong, right = faults_of(OneWrong)
    assert len(wrong) == 1 and "2 tokens equal" in wrong[0] and right == []


def test_only_the_prompts_asked_for_are_run() -> None:
    begun = []

    class Counted(TorchModel):
        def prefill(self, ids: Sequence[int]) -> int:
            begun.extend([ids] if len(ids) > 1 else [])
            return super().prefill(ids)

    stage, _ = Live(SPEC, None, lambda path, _: Counted(str(path)), "a compiler", only=[1]).stage("fp32")
    assert [(golden.index, golden.text) for golden in stage.golden.prompts] == [(1, "0123")]
    assert len(begun) == 1


def test_what_a_mode_that_rounds_activations_may_differ_by_is_measured_when_pytorch_verifies_now() -> None:
    """Its limits follow from PyTorch's own error; without one nothing would pass."""
    stage, _ = Live(SPEC, None, lambda path, _: TorchModel(str(path)), "a compiler").stage("w8a8")
    for part in stage.golden.prompts:
        assert part.eager_worst > 0 and np.isfinite(part.allowed("w8a8")).all()


def test_the_stored_fp32_golden_is_taken_if_it_is_of_these_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    made = []
    monkeypatch.setattr(live, "make_golden", lambda *_, **__: made.append(1) or make_golden(SPEC, source.resolve(SPEC)))
    tiny = registry.model("llama-tiny")
    assert Live(tiny, None, TorchModel, "a compiler")._plain.model == "llama-tiny" and not made
    other = replace(tiny, source="synthetic:8")
    assert Live(other, None, TorchModel, "a compiler")._plain.model == SPEC.name and made


def test_the_golden_that_modes_are_compared_with_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    made = []

    def counted(*args, **options):
        made.append(args[0].prompts)
        return make_golden(*args, **options)

    monkeypatch.setattr(live, "make_golden", counted)
    for spec in (SPEC, SPEC, replace(SPEC, prompts=SPEC.prompts[:1])):
        plain = Live(spec, None, lambda path, _: TorchModel(str(path)), "a compiler")._plain
        assert plain.quant == "fp32" and len(plain.prompts) == len(spec.prompts)
    assert [len(prompts) for prompts in made] == [2, 1]


def test_the_first_layers_of_a_model_have_its_weights() -> None:
    whole, part = registry.model("llama-2-7b"), registry.model("llama-2-7b").first_layers(2)
    all_of, some = (json.loads((source.resolve(spec) / "synthetic.json").read_text()) for spec in (whole, part))
    assert some["seed"] == all_of["seed"]
    assert some["tensors"] == {
        name: entry
        for name, entry in all_of["tensors"].items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < 2
    }
    names = [f"model.layers.{layer}.input_layernorm.weight" for layer in range(2)]
    for name in names:
        assert np.array_equal(FolderWeights(source.resolve(part))(name), FolderWeights(source.resolve(whole))(name))


@pytest.mark.parametrize(("name", "depth"), [("llama-2-7b", 33), ("llama-2-7b", 0), ("smollm2-135m", 1)])
def test_a_depth_that_a_model_cannot_have_is_refused(name: str, depth: int) -> None:
    with pytest.raises(UsageError, match=f"depth={depth}: expected synthetic weights and 1 to"):
        registry.model(name).first_layers(depth)


def test_memory_beyond_the_plan_is_a_fault() -> None:
    assert not Held(1000, 200, 50, 1280).fault
    assert "resident, 1.03 × the planned" in Held(1000, 200, 50, 1290).fault


WATCHED = """
import numpy as np
from assay.measure.resident import Watch
before = np.ones(48 << 20, np.uint8)
watch = Watch()
peak = np.ones(32 << 20, np.uint8)
del peak
held = watch.held({"weight_bytes": 32 << 20})
print(held.resident_bytes, held.planned_bytes, before.any())
"""


def test_the_watch_sees_what_was_held_meanwhile_and_nothing_before() -> None:
    """In a process of its own: of one that has run for long the kernel takes pages back at any time."""
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True)
    resident, planned, _ = done.stdout.split()
    assert abs(int(resident) - (32 << 20)) < 4 << 20  # the kernel counts pages in batches
    assert int(planned) == 32 << 20


TOKENS = {
    "ok": True,
    "prompts": [{"equal": 64, "certified": 60}],
    "distribution": {"kl_mean": 1e-9},
    "cost": {"kl_mean": 1e-2, "same_top1": 0.95},
}
SPEED = {
    **{"weight_bytes": 4e9, "kv_bytes": 5e8, "arena_bytes": 1e8, "model_rss_bytes": 4.7e9},
    **{"tpot_ms": 250.0, "achieved_gb_s": 16.0, "ceiling_share": 0.8},
}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """What the two commands answer; tests change it."""
    answers = {
        "tokens": SimpleNamespace(returncode=0, stdout=json.dumps(TOKENS), stderr=""),
        "generate": SimpleNamespace(returncode=0, stdout=json.dumps(SPEED), stderr=""),
    }

    def answer(command: Sequence[str], **_: object) -> SimpleNamespace:
        return answers[command[3]]

    monkeypatch.setattr(model_table.subprocess, "run", answer)
    return answers


def test_a_row_has_tokens_cost_speed_and_memory(commands: dict[str, SimpleNamespace]) -> None:
    row = mode_row("w8", [], [], [])
    assert not row.fault and set(row.shown) == set(COLUMNS)
    assert row.shown["of ceiling"] == "80%" and row.shown["planned GB"] == "4.60"


def test_wrong_tokens_show_no_speed(commands: dict[str, SimpleNamespace]) -> None:
    bad = json.dumps(TOKENS | {"ok": False})
    commands["tokens"] = SimpleNamespace(returncode=1, stdout=bad, stderr="p00\nerror: tokens differ\n")
    row = mode_row("w8", [], [], [])
    assert row.fault == "assay tokens ended with exit code 1: tokens differ"
    assert "ms/token" not in row.shown and row.shown["certified"] == "60"


def test_more_memory_than_planned_fails_the_row(commands: dict[str, SimpleNamespace]) -> None:
    commands["generate"].stdout = json.dumps(SPEED | {"model_rss_bytes": 4.8e9})
    assert mode_row("w8", [], [], []).fault.startswith("memory: 4.80 GB resident")


def test_a_killed_command_is_a_fault_with_its_code(commands: dict[str, SimpleNamespace]) -> None:
    commands["generate"] = SimpleNamespace(returncode=-9, stdout="", stderr="")
    assert "assay generate ended with exit code -9" in mode_row("w8", [], [], []).fault


class TurnedLate(TorchModel):
    """Its fourth token is its second choice; what follows is what it says after that."""

    def decode(self, token: int) -> int:
        self.fed = getattr(self, "fed", 0) + 1
        chosen = super().decode(token)
        return (chosen + 1) % self.vocabulary if self.fed == 3 else chosen


def test_ids_of_a_large_model_that_rounds_activations_stay_and_each_is_judged(tmp_path: Path) -> None:
    """PyTorch's own continuation would cost a pass over all weights for every tie."""
    spec = replace(SPEC, streamed=True, prompts=SPEC.prompts[:1], quant_prompts=1)
    passes = []

    class Counted(Reference):
        def passes(self, *arguments, **options):
            passes.append(self.dtype)
            return super().passes(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path))  # nothing is kept of an earlier run
        patch.setattr("assay.tokens.make_golden.Reference", Counted)
        stage, model = Live(spec, None, lambda *_: TurnedLate(str(source.resolve(SPEC))), "a compiler").stage("w8a8")
    assert passes == [torch.float64, torch.float32, torch.float64]  # golden, yardstick, and fp32 for the cost
    golden = stage.golden.prompts[0]
    assert golden.eager_worst > 0 and golden.top_ids[golden.predicting, 0].tolist() != golden.new_ids
    (result,) = stage.prompts(model)
    assert result.free.equal == 5 and result.free.triage is not None and result.free.triage.position == 3
