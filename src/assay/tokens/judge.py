"""Judges a compiled model's tokens against a stored golden: teacher-forced first, then free-running.

Teacher forcing feeds the golden's ids and compares log-probabilities; it sees every position whatever happened before.
Free running generates as a user would, and must repeat the golden's tokens as far as its margins certify.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special

from assay.backends.protocol import LanguageModel
from assay.tokens.golden import PromptGolden
from assay.tokens.tokenizer import Tokenizer
from assay.tokens.tolerance import mode


@dataclass(frozen=True)
class Choice:
    """One candidate for a position, as a person wants to see it."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Triage:
    """A position where two greedy runs part. ``verdict`` is near-tie or real; ``margin`` how much more likely ``want``
    is than ``got`` in the golden, in nats."""

    position: int
    got: Choice
    want: Choice
    margin: float
    allowed: float
    ties: bool  # the mode rounds activations
    got_top: tuple[Choice, ...]
    want_top: tuple[Choice, ...]

    @property
    def verdict(self) -> str:
        """A near-tie is within twice the allowed error; at token 0 or 1 no rounding has had time to gather, unless a
        single tie turns a code."""
        return "near-tie" if _near(self.position, self.margin, self.allowed, self.ties) else "real"

    def __str__(self) -> str:
        def row(choices: tuple[Choice, ...]) -> str:
            return ", ".join(f"{c.text!r} {c.logprob:.4f}" for c in choices)

        return "\n".join(
            (
                f"token {self.position}: got {self.got.id} {self.got.text!r}, want {self.want.id} {self.want.text!r}",
                f"  margin   {self.margin:.2e} nats, twice the allowed error is {2 * self.allowed:.2e}: {self.verdict}",
                f"  got      {row(self.got_top)}",
                f"  want     {row(self.want_top)}",
            )
        )


@dataclass(frozen=True)
class TeacherForced:
    """Log-probabilities over every position of one prompt and its golden continuation.

    ``headroom`` is the largest error over the allowed error; ``turned`` are the positions where the first choice
    differs though the margin does not allow it. The divergence is taken over the golden's top tokens and the sum of
    the rest, a lower bound of the whole.
    """

    positions: int
    max_error: float
    headroom: float
    turned: tuple[int, ...]
    same_top1: int
    divergence: np.ndarray

    @property
    def ok(self) -> bool:
        return not self.fault

    @property
    def fault(self) -> str:
        """What is wrong, in a sentence; empty when nothing is."""
        lines = []
        if not self.headroom <= 1:
            lines.append(f"log-probability error {self.max_error:.2e} nats is {self.headroom:.2f} × allowed")
        if self.turned:
            lines.append(f"first choice differs beyond any rounding at positions {self.turned[:5]}")
        return "; ".join(lines)


@dataclass(frozen=True)
class FreeRunning:
    """Greedy generation of one prompt: ``equal`` tokens are what the golden's model chooses after the same ids, and
    the leading ``certified`` ones must be. ``triage`` is about the first that no rounding explains; where rounding
    explains all, about the first that is not equal."""

    tokens: tuple[int, ...]
    equal: int
    certified: int
    smallest_margin: float
    triage: Triage | None

    @property
    def ok(self) -> bool:
        triage = self.triage
        return triage is None or (triage.position >= self.certified and triage.verdict != "real")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 log-probabilities of [..., vocabulary] logits; NaN for a row with an infinity, which no check passes."""
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return wide - scipy.special.logsumexp(wide, axis=-1, keepdims=True)


def teacher_forced(golden: PromptGolden, logits: np.ndarray, quant: str) -> TeacherForced:
    """Compare ``logits`` [T, vocabulary], got by feeding ``golden.ids``, with the golden."""
    logprobs = log_softmax(logits)
    allowed = golden.allowed(quant)
    ours = np.take_along_axis(logprobs, golden.top_ids.astype(np.int64), axis=1)
    error = np.abs(ours - golden.top_logprobs).max(axis=1)
    error = np.where(np.isfinite(error), error, np.inf)
    same = logits.argmax(axis=1) == golden.top_ids[:, 0]
    turned = np.flatnonzero(~same & (golden.margins > 2 * allowed))
    return TeacherForced(
        positions=len(golden.ids),
        max_error=float(error.max()),
        headroom=float((error / allowed).max()),
        turned=tuple(turned.tolist()),
        same_top1=int(same.sum()),
        divergence=coarse_divergence(
            np.column_stack([golden.top_logprobs, golden.log_rest]).astype(np.float64),
            np.column_stack([ours, rest_of(logprobs, golden.top_ids)]),
        ),
    )


def rest_of(logprobs: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Log-probability [T] of all tokens together that are not ``listed`` [T, K]; -Inf when there are none."""
    others = logprobs.copy()
    np.put_along_axis(others, listed.astype(np.int64), -np.inf, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(scipy.special.logsumexp(others, axis=1))


def coarse_divergence(want: np.ndarray, got: np.ndarray) -> np.ndarray:
    """KL(want ‖ got) in nats per row of log-probabilities [T, K + 1] that cover everything: K tokens, and the rest.

    Rows are normalised first: what is stored was rounded to float32, which moves the sum.
    """
    p, q = scipy.special.softmax(want, axis=1), scipy.special.softmax(got, axis=1)
    return scipy.special.rel_entr(p, q).sum(axis=1)


def generate(model: LanguageModel, ids: list[int], new_tokens: int) -> list[int]:
    """``new_tokens`` greedy ids through the model's cache; stop tokens do not stop it."""
    model.reset()
    out = [model.prefill(ids)]
    while len(out) < new_tokens:
        out.append(model.decode(out[-1]))
    return out


def free_running(
    golden: PromptGolden, tokens: list[int], model: LanguageModel, tokenizer: Tokenizer, quant: str
) -> FreeRunning:
    """Compare greedily generated ``tokens`` with the golden's choices as long as the same ids go before; triage the
    worst that differs: the first that is real, else the first."""
    count = len(tokens)
    parts = next((i for i, (a, b) in enumerate(zip(tokens, golden.new_ids, strict=False)) if a != b), count - 1)
    want = golden.top_ids[golden.predicting, 0][: parts + 1].tolist()
    different = [i for i, (a, b) in enumerate(zip(tokens, want, strict=False)) if a != b]
    margins, allowed = _behind(golden, tokens[: len(want)]), golden.allowed(quant)[golden.predicting]
    ties = mode(quant).rounds_activations
    worst = min(different, key=lambda i: _near(i, margins[i], allowed[i], ties), default=None)
    return FreeRunning(
        tokens=tuple(tokens),
        equal=len(want) - len(different),
        certified=min(golden.certified(quant), count),
        smallest_margin=float(golden.margins[golden.predicting][:count].min()),
        triage=None if worst is None else triage(golden, worst, tokens[worst], model, tokenizer, quant),
    )


def _near(position: int, margin: float, allowed: float, ties: bool) -> bool:
    return (position > 1 or ties) and bool(margin <= 2 * allowed)


def _behind(golden: PromptGolden, tokens: list[int]) -> np.ndarray:
    """How much less likely than the golden's choice each of the new ``tokens`` is, in nats; for one that is not among
    the golden's top tokens how much less the last of them is."""
    rows = slice(golden.predicting.start, golden.predicting.start + len(tokens))
    logprobs, listed = golden.top_logprobs[rows], golden.top_ids[rows] == np.array(tokens)[:, None]
    place = np.where(listed.any(axis=1), listed.argmax(axis=1), -1)
    return logprobs[:, 0] - np.take_along_axis(logprobs, place[:, None], axis=1)[:, 0]


def triage(
    golden: PromptGolden, position: int, got: int, model: LanguageModel, tokenizer: Tokenizer, quant: str
) -> Triage:
    """What stands at new token ``position``, where the model chose ``got``; the same ids go before in both."""
    row = golden.prompt_length - 1 + position
    logprobs = log_softmax(model.logits(golden.ids[: row + 1].tolist())[-1])

    def choice(id_: int | np.integer, logprob: Any) -> Choice:
        return Choice(int(id_), tokenizer.decode([int(id_)], special=True), float(logprob))

    best = np.argsort(-logprobs, kind="stable")[:5]
    return Triage(
        position=position,
        got=choice(got, logprobs[got]),
        want=choice(golden.top_ids[row, 0], golden.top_logprobs[row, 0]),
        margin=float(_behind(golden, [*golden.new_ids[:position], got])[-1]),
        allowed=float(golden.allowed(quant)[row]),
        ties=mode(quant).rounds_activations,
        got_top=tuple(choice(id_, logprobs[id_]) for id_ in best),
        want_top=tuple(
            choice(*pair) for pair in zip(golden.top_ids[row, :5], golden.top_logprobs[row, :5], strict=True)
        ),
    )
