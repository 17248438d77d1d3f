"""A model with a fault somewhere inside: the stage names the layer, the token and the operation, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import anvil
from anvil import model_trace, models
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import calls, emit, finish
from assay.backends._torch_model import TorchModel
from assay.backends.protocol import LanguageModel
from assay.tokens import registry
from assay.tokens.locate import Place, locate
from assay.tokens.stage import TokenStage

TARGET = "x86_64-avx2"
CONTEXT = 64
LATE = 20  # the first token whose key and value go to the wrong slot
aten, ops = torch.ops.aten, torch.ops.anvil


@pytest.fixture(scope="module")
def stage() -> TokenStage:
    return TokenStage(registry.model("llama-tiny"))


@pytest.fixture(scope="module")
def module(stage: TokenStage) -> torch.nn.Module:
    return models.load(str(stage.path)).module


@pytest.fixture(scope="module")
def captured(module: torch.nn.Module) -> GraphProgram:
    """Captured once for all faults in graphs."""
    return model_trace._capture(module, CONTEXT)


def find(stage: TokenStage, model: LanguageModel) -> Place | None:
    golden = stage.golden.prompts[2]
    return locate(stage.reference, model, golden.ids[:32].tolist(), golden.prompt_length, "fp32")


def after(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[GraphProgram], None]) -> None:
    """Let a pass of the compiler do ``change`` to its result."""
    honest = getattr(model_trace, name)

    def faulty(program: GraphProgram) -> GraphProgram:
        result = honest(program)
        change(result)
        finish(result)
        return result

    monkeypatch.setattr(model_trace, name, faulty)


def nth(program: GraphProgram, op: torch._ops.OpOverload, index: int) -> torch.fx.Node:
    return list(calls(program.module.graph, op))[index]


def test_a_right_model_has_no_such_place(stage: TokenStage) -> None:
    assert find(stage, TorchModel(str(stage.path))) is None


def test_one_wrong_weight_is_found_at_its_linear_layer(stage: TokenStage, module: torch.nn.Module) -> None:
    wrong = copy.deepcopy(module)
    wrong.get_submodule("model.layers.2.mlp.up_proj").weight.data[7] *= 1.001

    place = find(stage, anvil.compile(wrong, TARGET, context=CONTEXT))

    assert place is not None
    assert (place.layer, place.point, place.ops) == ("model.layers.2", "model.layers.2.mlp.up_proj", ("linear",))
    assert not place.cached and "self.up_proj(x)" in place.source


def test_the_report_of_a_quantised_mode_tells_what_came_instead_of_what_and_where_it_went_wrong(
    module: torch.nn.Module,
) -> None:
    stage = TokenStage(registry.model("llama-tiny"), "w4-g32")
    wrong = copy.deepcopy(module)
    wrong.get_submodule("model.layers.2.mlp.up_proj").weight.data[:32] *= 4
    model = anvil.compile(wrong, TARGET, quant="w4-g32", context=CONTEXT)

    first = stage.golden.prompts[2]
    (result,) = stage.prompts(model, 8, only=[first.index])
    report = "\n".join([*result.failures, stage.locate(model, result)])

    got, want = result.free.tokens[result.free.equal], first.new_ids[result.free.equal]
    texts = [stage.tokenizer.decode([token], special=True) for token in (got, want)]
    row = first.prompt_length - 1 + result.free.equal
    listed = first.top_ids[row].tolist()
    margin = first.top_logprobs[row, 0] - first.top_logprobs[row, listed.index(got) if got in listed else -1]
    assert f"token {result.free.equal}: got {got} {texts[0]!r}, want {want} {texts[1]!r}" in report
    assert f"margin   {margin:.2e} nats" in report and ": real" in report
    top = {line.split()[0]: line for line in report.splitlines() if line.startswith(("  got ", "  want "))}
    assert top["got"].count(", ") >= 4 and top["want"].count(", ") >= 4, "five candidates of both"
    assert top["got"].split(maxsplit=1)[1].startswith(repr(texts[0])), "the model's own first choice stands first"
    assert top["want"].split(maxsplit=1)[1].startswith(repr(texts[1]))
    assert "first outside its bound: model.layers.2, token 0" in report
    assert "linear, which makes model.layers.2.mlp.up_proj" in report


def test_swapped_operands_are_found_at_their_op(
    stage: TokenStage, module: torch.nn.Module, captured: GraphProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(program: GraphProgram) -> None:
        node = nth(program, ops.swiglu.default, 1)
        node.args = node.args[::-1]

    monkeypatch.setattr(model_trace, "_capture", lambda *_: captured)
    after(monkeypatch, "fuse", swap)
    place = find(stage, anvil.compile(module, TARGET, context=CONTEXT))

    assert place is not None
    assert (place.layer, place.ops, place.position) == ("model.layers.1", ("swiglu",), 0)
    assert place.point == "model.layers.1.mlp.down_proj:in"


def test_a_value_written_one_slot_off_from_some_token_on_is_found_in_the_token_loop(
    stage: TokenStage, module: torch.nn.Module, captured: GraphProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stick(program: GraphProgram) -> None:
        node = nth(program, ops.kv_append.default, 5)  # two in each layer, keys before values
        cache, new, past = node.args
        stuck = emit(program, node, aten.clamp.default, past, None, LATE - 1)
        node.args = (cache, new, stuck)

    monkeypatch.setattr(model_trace, "_capture", lambda *_: captured)
    after(monkeypatch, "greedy", stick)
    place = find(stage, anvil.compile(module, TARGET, context=CONTEXT))

    assert place is not None and place.cached
    assert (place.layer, place.position) == ("model.layers.2", LATE)
    assert {"kv_append", "attention_cached"} <= set(place.ops) and "rope" not in place.ops
    assert "the same ids without a cache are right" in str(place)
