"""Tests of the judge: a right model passes, each kind of wrong one is caught by the check that should catch it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.backends._torch_model import TorchModel
from assay.errors import UsageError
from assay.tokens import judge, layers, registry
from assay.tokens.golden import PromptGolden
from assay.tokens.stage import TokenStage
from assay.tokens.tolerance import certified, tau


@pytest.fixture(scope="module")
def stage() -> TokenStage:
    return TokenStage(registry.model("llama-tiny"))


@pytest.fixture(scope="module")
def model(stage: TokenStage) -> TorchModel:
    return TorchModel(str(stage.path))


class Altered:
    """A model whose logits, tokens or residuals are altered on the way out."""

    def __init__(self, inner: TorchModel, logits=lambda x: x, token=lambda i, t: t, residual=lambda n, x: x) -> None:
        self.inner, self.alter_logits, self.alter_token, self.alter_residual = inner, logits, token, residual
        self.vocabulary, self.context = inner.vocabulary, inner.context
        self.count = 0

    def logits(self, ids):
        return self.alter_logits(self.inner.logits(ids))

    def reset(self):
        self.count = 0
        self.inner.reset()

    def prefill(self, ids):
        return self._next(self.inner.prefill(ids))

    def decode(self, token):
        return self._next(self.inner.decode(token))

    def _next(self, token):
        self.count += 1
        return self.alter_token(self.count - 1, token)

    def points(self, *, cached=False):
        return self.inner.points(cached=cached)

    def trace(self, ids, names, *, prompt=None):
        return self.inner.trace(ids, names, prompt=prompt)

    def residuals(self, ids):
        return {name: self.alter_residual(name, value) for name, value in self.inner.residuals(ids).items()}

    def facts(self):
        return self.inner.facts()


def test_pytorch_eager_passes_every_check(stage: TokenStage, model: TorchModel) -> None:
    results = list(stage.prompts(model, new_tokens=16))
    assert [result.failures for result in results] == [[]] * len(stage.golden.prompts)
    assert stage.distribution(results).ok
    assert all(result.free.equal == 16 for result in results)


def test_pytorch_eager_goes_on_with_a_window_when_its_context_is_full(stage: TokenStage) -> None:
    model, prompt = TorchModel(str(stage.path), context=24), stage.golden.prompts[0].prompt_ids[:10]
    (found,) = model.answers([prompt], 40, {}, (), lambda *_: None, window=8)
    told = [*prompt, *found]
    for full in (25, 42):  # 24 slots are full once the id behind the last of them is known
        (again,) = model.answers([told[full - 8 : full]], 8, {}, (), lambda *_: None)
        assert told[full : full + 8] == again[: len(told) - full]


def test_a_small_error_in_every_logit_is_caught_by_teacher_forcing(stage: TokenStage, model: TorchModel) -> None:
    rng = np.random.default_rng(0)
    noisy = Altered(model, logits=lambda x: x + rng.normal(0, 2e-3, x.shape).astype(np.float32))
    (result,) = stage.prompts(noisy, new_tokens=8, only=[0])
    assert result.forced.headroom > 1
    assert "log-probability error" in result.failures[0]


def test_a_constant_added_to_all_logits_changes_no_distribution(stage: TokenStage, model: TorchModel) -> None:
    shifted = Altered(model, logits=lambda x: x + np.float32(1))
    (result,) = stage.prompts(shifted, new_tokens=8, only=[0])
    assert result.ok


def test_a_turned_choice_is_caught_where_the_margin_is_certain(stage: TokenStage) -> None:
    golden = stage.golden.prompts[0]
    logits = stage.reference.logits(golden.ids.tolist()).astype(np.float32)
    row = int(golden.margins.argmax())
    first, second = golden.top_ids[row, :2]
    logits[row, [first, second]] = logits[row, [second, first]]

    forced = judge.teacher_forced(golden, logits, "fp32")

    assert forced.turned == (row,)
    assert forced.same_top1 == forced.positions - 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_or_infinity_never_passes(stage: TokenStage, model: TorchModel, value: float) -> None:
    def poison(logits: np.ndarray) -> np.ndarray:
        logits[2, 7] = value
        return logits

    (result,) = stage.prompts(Altered(model, logits=poison), new_tokens=4, only=[0])
    assert not result.ok and result.forced.headroom == np.inf


@pytest.mark.parametrize(("position", "verdict"), [(0, "real"), (5, "real")])
def test_a_wrong_token_is_triaged(stage: TokenStage, model: TorchModel, position: int, verdict: str) -> None:
    wrong = Altered(model, token=lambda i, t: (t + 1) % 256 if i == position else t)
    (result,) = stage.prompts(wrong, new_tokens=8, only=[0])

    triage = result.free.triage
    assert triage is not None and not result.ok
    assert (triage.position, triage.verdict) == (position, verdict)
    want = stage.golden.prompts[0].new_ids[position]
    assert triage.want.id == want and triage.got.id == (want + 1) % 256
    assert len(triage.got_top) == len(triage.want_top) == 5
    text = str(triage)
    assert f"token {position}: got {triage.got.id}" in text and "margin" in text and "want" in text


def with_near_tie(golden: PromptGolden, position: int) -> PromptGolden:
    """The golden with two first choices that are almost equally likely at new token ``position``."""
    row = golden.prompt_length - 1 + position
    margins, logprobs = golden.margins.copy(), golden.top_logprobs.copy()
    margins[row], logprobs[row, 1] = 1e-4, logprobs[row, 0] - 1e-4
    return replace(golden, margins=margins, top_logprobs=logprobs)


def test_a_near_tie_after_the_certified_tokens_is_no_fault(stage: TokenStage, model: TorchModel) -> None:
    close = with_near_tie(stage.golden.prompts[0], 5)
    tokens = close.new_ids[:8]
    tokens[5] = int(close.top_ids[close.predicting][5, 1])

    free = judge.free_running(close, tokens, model, stage.tokenizer, "fp32")

    assert free.certified == 5 and free.equal == 5
    assert free.triage is not None and free.triage.verdict == "near-tie" and free.ok


@pytest.mark.parametrize("choice", [2, 255, None], ids=["third", "last listed", "not listed"])
def test_where_two_tokens_are_near_a_third_one_is_no_near_tie(
    stage: TokenStage, model: TorchModel, choice: int | None
) -> None:
    close = with_near_tie(stage.golden.prompts[0], 5)
    listed = close.top_ids[close.predicting][5].tolist()
    tokens = close.new_ids[:8]
    tokens[5] = min(set(range(259)) - set(listed)) if choice is None else listed[choice]

    free = judge.free_running(close, tokens, model, stage.tokenizer, "fp32")

    assert free.triage is not None and free.triage.verdict == "real" and not free.ok


def test_of_ids_as_they_were_drafted_each_is_judged_also_after_a_near_tie(stage: TokenStage, model: TorchModel) -> None:
    close = with_near_tie(stage.golden.prompts[0], 5)
    ids, choices = close.ids.copy(), close.top_ids[close.predicting]
    ids[close.prompt_length + 5], ids[close.prompt_length + 7] = choices[5, 1], choices[7, 9]
    drafted = replace(close, ids=ids)

    free = judge.free_running(drafted, drafted.new_ids[:12], model, stage.tokenizer, "fp32")

    assert free.equal == 10 and free.triage is not None and not free.ok
    assert (free.triage.position, free.triage.verdict) == (7, "real")


def test_divergence_of_a_distribution_from_itself_is_zero_and_sees_a_change() -> None:
    p = np.log(np.array([[0.5, 0.3, 0.1, 0.1]]))
    assert judge.coarse_divergence(p, p).item() == 0
    q = np.log(np.array([[0.4, 0.4, 0.1, 0.1]]))
    by_hand = 0.5 * np.log(0.5 / 0.4) + 0.3 * np.log(0.3 / 0.4)
    assert judge.coarse_divergence(p, q).item() == pytest.approx(by_hand, rel=1e-12)


def test_the_rest_of_a_distribution_is_exact_however_small() -> None:
    logprobs = judge.log_softmax(np.array([[40.0, 0.0, 1.0]]))
    assert judge.rest_of(logprobs, np.array([[0]])) == pytest.approx(-40 + np.log(1 + np.e), rel=1e-12)
    assert judge.rest_of(logprobs, np.array([[2, 0, 1]])).item() == -np.inf


def test_divergence_is_seen_in_the_rest_and_not_made_by_rounding_what_is_stored(stage: TokenStage) -> None:
    golden = stage.golden.corpus[0].head(64)
    exact = stage.reference.logits(golden.ids.tolist())
    assert judge.teacher_forced(golden, exact, "fp32").divergence.max() < 1e-12
    exact[:, 100] += 3 * (golden.top_ids != 100).all(axis=1)
    assert judge.teacher_forced(golden, exact, "fp32").divergence.max() > 1e-4


def test_a_piece_of_the_corpus_is_judged_like_a_prompt(stage: TokenStage, model: TorchModel) -> None:
    pieces = list(stage.corpus(Altered(model, logits=lambda x: np.flip(x, axis=1))))
    assert not any(piece.ok for piece in pieces)
    positions = sum(piece.positions for piece in pieces) + sum(len(p.ids) for p in stage.golden.prompts)
    assert positions == stage.spec.positions == 2000


def test_pytorch_eager_stays_inside_the_layer_bounds_and_grows_like_rounding(
    stage: TokenStage, model: TorchModel
) -> None:
    report = stage.layers(model, positions=24)
    assert [layer.name for layer in report.layers] == list(stage.golden.layers)
    assert report.headroom < 0.5 and report.first_outside == ""
    assert 0.2 < report.growth < 0.8


def test_the_first_bad_layer_is_named(stage: TokenStage, model: TorchModel) -> None:
    def spoil(name: str, value: np.ndarray) -> np.ndarray:
        return value * np.float32(1 + 1e-3) if name in ("model.layers.2", "model.layers.3") else value

    report = stage.layers(Altered(model, residual=spoil), positions=24)
    assert report.first_outside == "model.layers.2"


def test_a_nan_in_the_residual_stream_is_outside() -> None:
    exact = {"a": np.ones((2, 3))}
    report = layers.layer_report(exact, {"a": np.full(2, 1e-6)}, {"a": np.full((2, 3), np.nan)})
    assert report.first_outside == "a"


def test_tolerance_grows_with_the_logit_and_knows_its_types() -> None:
    allowed = tau("fp32", np.array([1.0, 30.0, 4096.0]))
    assert allowed.tolist() == [1e-3, 1e-3, 4 * 2.0 ** (12 - 23)]
    with pytest.raises(UsageError, match="quant='fp3'"):
        tau("fp3", np.array([1.0]))


def test_certified_counts_up_to_the_first_weak_margin() -> None:
    assert certified(np.array([1.0, 0.5, 0.001, 1.0]), np.full(4, 1e-3)) == 2
    assert certified(np.ones(3), np.full(3, 1e-3)) == 3


def test_a_mode_without_golden_is_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="no golden for quant='w4'"):
        TokenStage(registry.model("llama-tiny"), "w4")


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"known: .*llama-tiny, smollm2-135m"):
        registry.model("gpt-9")


def test_two_files_may_not_claim_one_model(tmp_path: Path) -> None:
    (tmp_path / "e2e").mkdir()
    text = "from assay.tokens.spec import ModelSpec\nMODEL = ModelSpec('m', 'x', (), 1)\n"
    (tmp_path / "e2e" / "a.py").write_text(text)
    (tmp_path / "e2e" / "b.py").write_text(text)
    with pytest.raises(UsageError, match="already taken"):
        registry.models(tmp_path)
