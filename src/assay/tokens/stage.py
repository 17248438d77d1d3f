"""The token stage for one model on one target: loads everything once, then judges prompt by prompt."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np

from assay.backends.protocol import Backend, LanguageModel
from assay.errors import UsageError
from assay.tokens import judge, layers
from assay.tokens.golden import Golden, PromptGolden, check_belongs, check_prompts, load_golden
from assay.tokens.local import LocalReport, local_report
from assay.tokens.locate import locate
from assay.tokens.quantised import emulation
from assay.tokens.reference import Reference
from assay.tokens.registry import golden_path
from assay.tokens.source import resolve, weights_hash
from assay.tokens.spec import ModelSpec
from assay.tokens.tokenizer import Tokenizer, load_tokenizer
from assay.tokens.tolerance import SAME, Limits, mode

STREAMED_POSITIONS = 16  # of a streamed model at which layers are looked at


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
        lines = [self.forced.fault] if self.forced.fault else []
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
    limits: Limits

    @classmethod
    def of(cls, forced: Sequence[judge.TeacherForced], limits: Limits) -> Distribution:
        """Over the positions of all ``forced``."""
        divergence = np.concatenate([each.divergence for each in forced])
        positions = len(divergence)
        return cls(
            positions=positions,
            kl_mean=float(divergence.mean()),
            kl_p999=float(np.quantile(divergence, 0.999)),
            same_top1=sum(each.same_top1 for each in forced) / positions,
            limits=limits,
        )

    @property
    def ok(self) -> bool:
        limits = self.limits
        near = self.kl_mean <= limits.kl_mean and self.kl_p999 <= limits.kl_p999
        return near and self.same_top1 >= limits.same_top1 and self.kl_mean >= limits.kl_least

    @property
    def headroom(self) -> float:
        """Worst of measured over allowed divergence."""
        return max(self.kl_mean / self.limits.kl_mean, self.kl_p999 / self.limits.kl_p999)

    def __str__(self) -> str:
        limits, least = self.limits, f" to {self.limits.kl_mean:.0e}"
        mean = f"{limits.kl_least:.0e}{least}" if limits.kl_least else f"at most{least.removeprefix(' to')}"
        return (
            f"KL mean {self.kl_mean:.1e} (allowed {mean}), 99.9 % {self.kl_p999:.1e} (allowed {limits.kl_p999:.0e}), "
            f"same first choice {self.same_top1:.2%} (at least {limits.same_top1:.1%}) over {self.positions} positions"
        )


class TokenStage:
    """A model's golden, tokenizer and weights, checked to belong together before any long work starts.

    ``golden`` and ``plain``, that of fp32, are the stored ones unless they are given. ``drafted`` has greedy ids that
    the model gave already, by the prompt's ids.
    """

    def __init__(
        self,
        spec: ModelSpec,
        quant: str = "fp32",
        weights: str | None = None,
        *,
        golden: Golden | None = None,
        plain: Golden | None = None,
        drafted: Mapping[tuple[int, ...], list[int]] = MappingProxyType({}),
    ) -> None:
        if golden is None and quant not in spec.quants:
            held = ", ".join(spec.quants) or "none, PyTorch must verify it --live"
            raise UsageError(f"model={spec.name} has no golden for quant={quant!r}; it has: {held}")
        self.mode = mode(quant)
        self.spec, self.quant = spec, quant
        self.golden: Golden = golden or load_golden(golden_path(spec, quant))
        self._plain, self._drafted = plain, drafted
        self._known: dict[tuple[int, bytes], np.ndarray] = {}
        self.path: Path = resolve(spec, weights)
        self.tokenizer: Tokenizer = load_tokenizer(self.path)
        check_belongs(self.golden, spec, quant, weights_hash(self.path))
        check_prompts(self.golden, spec, self.tokenizer)

    def load(self, backend: Backend, target: str, threads: int = 1) -> LanguageModel:
        """The compiled model."""
        return backend.load_model(str(self.path), target, quant=self.quant, threads=threads, context=self.spec.context)

    def prompts(
        self, model: LanguageModel, new_tokens: int | None = None, only: Sequence[int] | None = None
    ) -> Iterator[PromptResult]:
        """Judge the golden's prompts (all, or those of an index in ``only``) with ``new_tokens`` greedy tokens each."""
        for golden in self.golden.prompts:
            if only is None or golden.index in only:
                yield self._prompt(golden, model, new_tokens or self.spec.new_tokens)

    def corpus(self, model: LanguageModel, positions: int | None = None) -> Iterator[judge.TeacherForced]:
        """Teacher-forced over the first ``positions`` of the corpus in the golden; None: over all."""
        return self._forced(self.golden.corpus, model, positions)

    def cost(self, model: LanguageModel, positions: int | None = None) -> Distribution | None:
        """What the mode costs: the divergence from the fp32 golden over its first ``positions``; None for fp32.

        Where the model's own cost was measured, a quarter to twice of that is accepted; 0 says that the weights come in
        this mode, which then costs nothing. Weights drawn at random have no redundancy that could absorb rounding: of
        them no more is asked than that a mode costs something.
        """
        limits = self.mode.cost
        if limits is None:
            return None
        measured = self.spec.costs.get(self.quant)
        if measured is not None:
            limits = Limits(2 * measured, np.inf, 0.0, measured / 4) if measured else SAME["fp32"]
        elif self.spec.seed is not None:
            limits = replace(limits, kl_mean=np.inf, kl_p999=np.inf, same_top1=0.0)
        golden = self._plain or load_golden(golden_path(self.spec))
        check_belongs(golden, self.spec, "fp32", weights_hash(self.path))
        parts = [part for _, part in golden.parts()]
        return Distribution.of(list(self._forced(parts, model, positions)), limits)

    def locate(self, model: LanguageModel, result: PromptResult) -> str:
        """Where the model first goes wrong on a prompt that failed."""
        golden = next(part for part in self.golden.prompts if part.index == result.index)
        ids = golden.ids[: golden.prompt_length + len(result.free.tokens)].tolist()
        if self.mode.rounds_activations:
            outside = local_report(self.reference, model, ids, self.quant).first_outside
            return str(outside or "every module is inside its bound on its own input: look at cache, output and choice")
        place = locate(self.reference, model, ids, golden.prompt_length, self.quant)
        if place is None:
            return "every layer is inside its bound: look at the final norm, the output projection and the choice"
        return str(place)

    def layers(self, model: LanguageModel, prompt: int = 0, positions: int | None = None) -> layers.LayerReport:
        """Error along the residual stream over the first ``positions`` tokens of a prompt with its continuation.

        ``prompt`` counts the golden's prompts. Of a streamed model a few positions are enough: the bound takes PyTorch
        three more runs of them.
        """
        positions = min(positions or STREAMED_POSITIONS, STREAMED_POSITIONS) if self.spec.streamed else positions
        ids = self.golden.prompts[prompt].ids[:positions].tolist()
        _, exact = self.reference.residuals(ids)
        drift = layers.rounding_drift(self.reference, ids, exact, self.quant)
        return layers.layer_report(exact, drift, model.residuals(ids))

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.path, emulation=emulation(self.quant, self.path), streamed=self.spec.streamed)

    def distribution(self, results: Sequence[PromptResult], corpus: Sequence[judge.TeacherForced] = ()) -> Distribution:
        """Divergence from the golden of the same mode over the positions of all ``results`` and ``corpus``."""
        return Distribution.of([*(result.forced for result in results), *corpus], self.limits)

    @property
    def limits(self) -> Limits:
        """How far from the golden of the same mode.

        Where activations are rounded, twice as far as PyTorch's own float32 of the same emulation if that is further:
        the rule for whatever has no derived bound.
        """
        limits = SAME[self.mode.stream]
        parts = [part for _, part in self.golden.parts()]
        if not self.mode.rounds_activations or not any(part.eager_same for part in parts):
            return limits
        positions = sum(len(part.ids) for part in parts)
        mean = sum(part.eager_kl[0] * len(part.ids) for part in parts) / positions
        same = sum(part.eager_same for part in parts) / positions
        return Limits(
            kl_mean=max(limits.kl_mean, 2 * mean),
            kl_p999=max(limits.kl_p999, 2 * max(part.eager_kl[1] for part in parts)),
            same_top1=min(limits.same_top1, 1 - 2 * (1 - same)),
        )

    def local(self, model: LanguageModel, prompt: int = 0, positions: int | None = None) -> LocalReport:
        """Every module on the model's own inputs, over the first ``positions`` tokens of a prompt and its answer."""
        ids = self.golden.prompts[prompt].ids[:positions].tolist()
        return local_report(self.reference, model, ids, self.quant)

    def _forced(
        self, parts: Sequence[PromptGolden], model: LanguageModel, positions: int | None
    ) -> Iterator[judge.TeacherForced]:
        """Teacher-forced over ``parts`` one after the other, ``positions`` in all."""
        left = positions
        for part in parts:
            part = part if left is None else part.head(left)
            if len(part.ids):
                yield judge.teacher_forced(part, self._logits(model, part), self.quant)
            left = left and left - len(part.ids)

    def _logits(self, model: LanguageModel, part: PromptGolden) -> np.ndarray:
        """Of the ids of ``part``; those of a large model are kept, since its goldens share their corpus."""
        if not self.spec.streamed:
            return model.logits(part.ids.tolist())
        key = (id(model), part.ids.tobytes())
        if key not in self._known:
            self._known[key] = model.logits(part.ids.tolist())
        return self._known[key]

    def _prompt(self, golden: PromptGolden, model: LanguageModel, new_tokens: int) -> PromptResult:
        ids = golden.ids[: golden.prompt_length + new_tokens]
        forced = judge.teacher_forced(golden.head(len(ids)), model.logits(ids.tolist()), self.quant)
        tokens = self._drafted.get(tuple(golden.prompt_ids)) or judge.generate(model, golden.prompt_ids, new_tokens)
        free = judge.free_running(golden, tokens, model, self.tokenizer, self.quant)
        answer = itertools.takewhile(lambda token: token not in self.tokenizer.stop, tokens)
        # A run shorter than the golden's may end before the answer contains what it should.
        expect = golden.expect if new_tokens >= self.spec.new_tokens else ""
        return PromptResult(
            index=golden.index,
            prompt=self.spec.prompts[golden.index].text,
            text=self.tokenizer.decode(list(answer)),
            expect=expect,
            eager_error=golden.eager_error,
            forced=forced,
            free=free,
        )
