"""The token stage for one model on one target: loads everything once, then judges prompt by prompt."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from assay.backends.protocol import Backend, LanguageModel
from assay.errors import UsageError
from assay.tokens import judge, layers
from assay.tokens.golden import Golden, PromptGolden, check_belongs, load_golden
from assay.tokens.make_golden import prompt_text
from assay.tokens.reference import Reference
from assay.tokens.registry import golden_path
from assay.tokens.source import resolve, weights_hash
from assay.tokens.spec import ModelSpec
from assay.tokens.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class PromptResult:
    """What one prompt showed. ``text`` is the answer up to the first stop token."""

    index: int
    prompt: str
    text: str
    expect: str
    eager_error: float
    forced: judge.TeacherForced
    free: judge.FreeRunning

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """One sentence for each thing that is wrong."""
        lines = []
        if self.forced.headroom > 1:
            error, headroom = self.forced.max_error, self.forced.headroom
            lines.append(f"log-probability error {error:.2e} nats is {headroom:.2f} × allowed")
        if self.forced.turned:
            lines.append(f"first choice differs beyond any rounding at positions {self.forced.turned[:5]}")
        if not self.free.ok:
            lines.append(f"{self.free.equal} tokens equal, {self.free.certified} certified\n{self.free.triage}")
        if self.expect not in self.text:
            lines.append(f"expected {self.expect!r} in the answer {self.text!r}")
        return lines


@dataclass(frozen=True)
class Distribution:
    """The divergence over all judged positions of a model."""

    positions: int
    kl_mean: float
    kl_p999: float
    same_top1: float
    limits: judge.Limits

    @property
    def ok(self) -> bool:
        limits = self.limits
        return self.kl_mean <= limits.kl_mean and self.kl_p999 <= limits.kl_p999 and self.same_top1 >= limits.same_top1

    @property
    def headroom(self) -> float:
        """Worst of measured over allowed divergence."""
        return max(self.kl_mean / self.limits.kl_mean, self.kl_p999 / self.limits.kl_p999)


class TokenStage:
    """A model's golden, tokenizer and weights, checked to belong together before any long work starts."""

    def __init__(self, spec: ModelSpec, quant: str = "fp32", weights: str | None = None) -> None:
        if quant not in spec.quants:
            raise UsageError(f"model={spec.name} has no golden for quant={quant!r}; it has: {', '.join(spec.quants)}")
        self.spec, self.quant = spec, quant
        self.path: Path = resolve(spec, weights)
        self.tokenizer: Tokenizer = load_tokenizer(self.path)
        self.golden: Golden = load_golden(golden_path(spec, quant))
        texts = [prompt_text(prompt, self.tokenizer) for prompt in spec.prompts]
        check_belongs(self.golden, spec, weights_hash(self.path), texts)

    def load(self, backend: Backend, target: str, threads: int = 1) -> LanguageModel:
        """The compiled model."""
        return backend.load_model(str(self.path), target, quant=self.quant, threads=threads, context=self.spec.context)

    def prompts(
        self, model: LanguageModel, new_tokens: int | None = None, only: Sequence[int] | None = None
    ) -> Iterator[PromptResult]:
        """Judge the prompts (all, or those with an index in ``only``), each with ``new_tokens`` greedy tokens."""
        for index, golden in enumerate(self.golden.prompts):
            if only is None or index in only:
                yield self._prompt(index, golden, model, new_tokens or self.spec.new_tokens)

    def layers(self, model: LanguageModel, prompt: int = 0, positions: int | None = None) -> layers.LayerReport:
        """Error along the residual stream over the first ``positions`` tokens of one prompt with its continuation."""
        ids = self.golden.prompts[prompt].ids[:positions].tolist()
        _, exact = self.reference.residuals(ids)
        drift = layers.rounding_drift(self.reference, ids, exact, self.quant)
        return layers.layer_report(exact, drift, model.residuals(ids))

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.path)

    def distribution(self, results: Sequence[PromptResult]) -> Distribution:
        """Divergence over the positions of all ``results``."""
        divergence = np.concatenate([result.forced.divergence for result in results])
        positions = len(divergence)
        return Distribution(
            positions=positions,
            kl_mean=float(divergence.mean()),
            kl_p999=float(np.quantile(divergence, 0.999)),
            same_top1=sum(result.forced.same_top1 for result in results) / positions,
            limits=judge.LIMITS[self.quant],
        )

    def _prompt(self, index: int, golden: PromptGolden, model: LanguageModel, new_tokens: int) -> PromptResult:
        ids = golden.ids[: golden.prompt_length + new_tokens]
        forced = judge.teacher_forced(golden.head(len(ids)), model.logits(ids.tolist()), self.quant)
        tokens = judge.generate(model, golden.prompt_ids, new_tokens)
        free = judge.free_running(golden, tokens, model, self.tokenizer, self.quant)
        answer = itertools.takewhile(lambda token: token not in self.tokenizer.stop, tokens)
        # A run shorter than the golden's may end before the answer contains what it should.
        expect = golden.expect if new_tokens >= self.spec.new_tokens else ""
        return PromptResult(
            index=index,
            prompt=self.spec.prompts[index].text,
            text=self.tokenizer.decode(list(answer)),
            expect=expect,
            eager_error=golden.eager_error,
            forced=forced,
            free=free,
        )
