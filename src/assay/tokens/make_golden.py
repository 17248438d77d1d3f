"""Makes a golden with PyTorch: greedy ids are drafted quickly, and one plain float64 pass must predict each of them."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special
import torch

from assay.errors import UsageError
from assay.tokens import corpus, judge
from assay.tokens.golden import CORPUS_TOP, TOP, Golden, PromptGolden, prompt_text
from assay.tokens.judge import log_softmax, rest_of
from assay.tokens.quantised import emulation
from assay.tokens.reference import Pass, Reference
from assay.tokens.source import weights_hash
from assay.tokens.spec import ModelSpec
from assay.tokens.tokenizer import Tokenizer, load_tokenizer
from assay.tokens.tolerance import mode

Progress = Callable[[str], None]
STREAMED_CORPUS = 112  # tokens: about the length of a prompt with its answer, as all are padded to the longest


@dataclass(frozen=True)
class Draft:
    """Who proposes greedy ids: ``greedy(ids, n)`` gives n ids after ``ids``; ``name`` goes into the provenance."""

    name: str
    greedy: Callable[[list[int], int], list[int]]


def make_golden(
    spec: ModelSpec,
    path: Path,
    quant: str = "fp32",
    draft: Draft | None = None,
    progress: Progress = lambda _: None,
    *,
    yardstick: bool = True,
    only: Sequence[int] | None = None,
) -> Golden:
    """The golden of ``spec`` from the weights at ``path``; with ``yardstick`` also how far PyTorch's float32 is off,
    which in a mode that rounds activations is always taken: what is allowed there follows from it.
    ``only`` says which prompts may go into it, by index.

    Greedy tokens are drafted, by eager float32 with PyTorch's KV cache unless another ``draft`` is given; one plain
    float64 pass over prompt and draft must predict each of them, and where it does not the draft is continued from
    float64's own choice. Whoever drafted, every id of a golden is float64's argmax. Without a draft the golden of a
    streamed model holds no prompts, the corpus alone: PyTorch would read all weights once per token.

    One golden is otherwise: of a streamed model in a mode that rounds activations, whose right runs part at ties every
    few tokens. Its ids stay as they were drafted, and float64 says after each what it would have chosen.

    Raises :class:`UsageError` for a prompt that is too long for the context, whose margins certify too few tokens, or
    whose answer lacks what it should contain; of a lossy mode, when this leaves too few prompts.
    """
    tokenizer = load_tokenizer(path)
    prompts = {index: ids for index, ids in tokenised(spec, tokenizer).items() if only is None or index in only}
    rounds = mode(quant).rounds_activations
    as_drafted = spec.streamed and rounds
    options: dict[str, Any] = {"emulation": emulation(quant, path), "streamed": spec.streamed}
    exact = Reference(path, **options)
    alone = spec.streamed and draft is None
    eager = None
    if yardstick or rounds or (draft is None and not alone):
        eager = Reference.eager(path, **options) if spec.streamed else exact.narrowed()
    if alone:
        prompts, draft = {}, Draft("nobody", lambda _ids, _count: [])
    elif draft is None:
        assert eager is not None
        draft = Draft("PyTorch eager float32", eager.greedy)
    run = functools.partial(_positions_of, exact=exact, eager=eager, draft=draft, as_drafted=as_drafted)
    chosen, pieces, left_out = _chosen(spec, quant, prompts, tokenizer, run, progress)
    how = "each judged" if as_drafted else "each verified"
    ids = "of a fixed text alone" if alone else f"drafted by {draft.name}, {how} by one float64 pass"
    origin = provenance(spec, path) | {"ids": ids}
    origin |= {"left_out": left_out} if left_out else {}
    if quant != "fp32":
        origin["arithmetic"] = f"float64, weights of {quant} dequantised exactly"
    return Golden(spec.name, quant, tuple(exact.layers), tuple(chosen), origin, tuple(pieces)).with_worst()


def tokenised(spec: ModelSpec, tokenizer: Tokenizer) -> dict[int, list[int]]:
    """The ids of every prompt by index. Raises :class:`UsageError` for one that does not fit the context."""
    found = {index: tokenizer.encode(prompt_text(prompt, tokenizer)) for index, prompt in enumerate(spec.prompts)}
    for index, ids in found.items():
        if len(ids) + spec.new_tokens > spec.context:
            raise UsageError(f"prompt {index} of {spec.name}: {len(ids)} tokens + {spec.new_tokens} > {spec.context}")
    return found


def provenance(spec: ModelSpec, path: Path) -> dict[str, Any]:
    """Where a golden made here and now comes from."""
    import tokenizers
    import transformers

    return {
        "source": spec.source,
        "weights_sha256": weights_hash(path),
        "seed": spec.seed,
        "arithmetic": "float64, weights float32",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "host": {
            "machine": platform.machine(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "os": platform.system(),
        },
    }


def _chosen(
    spec: ModelSpec,
    quant: str,
    prompts: dict[int, list[int]],
    tokenizer: Tokenizer,
    run: Callable[[list[_Job]], list[PromptGolden]],
    progress: Progress,
) -> tuple[list[PromptGolden], list[PromptGolden], dict[str, str]]:
    """The prompts that go into the golden, the pieces of the corpus, and why other prompts do not, by index.

    All prompts of fp32; of a lossy mode or a streamed model as many as are needed, so that one which is uncertain does
    no harm.
    """
    wanted = len(prompts) if quant == "fp32" and not spec.streamed else min(spec.quant_prompts, len(prompts))
    queue, chosen, left_out = list(prompts), [], {}
    pieces: list[PromptGolden] = [] if prompts else run(_corpus_jobs(spec, quant, tokenizer, 0))
    while queue and len(chosen) < wanted:
        indices = queue[: wanted - len(chosen)]
        queue = queue[len(indices) :]
        jobs = [_Job(prompts[index], spec.new_tokens, TOP) for index in indices]
        if not pieces:
            jobs += _corpus_jobs(spec, quant, tokenizer, sum(len(job.ids) + job.new_tokens for job in jobs))
            progress(f"{len(indices)} prompts, and {sum(len(j.ids) for j in jobs[len(indices) :])} corpus positions")
        parts = run(jobs)
        pieces = pieces or parts[len(indices) :]
        for index, part in zip(indices, parts, strict=False):
            text, expect = prompt_text(spec.prompts[index], tokenizer), spec.prompts[index].expect
            named = replace(part, text=text, expect=expect, index=index)
            if problem := _problem(spec, quant, named, tokenizer, progress):
                left_out[str(index)] = problem
            else:
                chosen.append(named)
    if len(chosen) < wanted:
        why = "; ".join(f"{index}: {problem}" for index, problem in left_out.items())
        raise UsageError(
            f"golden of model={spec.name} quant={quant}: {len(chosen)} of {len(prompts)} prompts can be used, expected "
            f"{wanted} ({why}); add prompts"
        )
    return chosen, pieces, left_out


def _problem(spec: ModelSpec, quant: str, part: PromptGolden, tokenizer: Tokenizer, progress: Progress) -> str:
    """Why a prompt may not go into the golden, or nothing. Raises :class:`UsageError` for one of fp32."""
    answer = tokenizer.decode(part.new_ids)
    prompt, sure = spec.prompts[part.index].text[:40], part.certified(quant)
    progress(f"p{part.index:02} {sure} of {spec.new_tokens} tokens certified, {prompt!r}: {answer[:60]!r}")
    problem = ""
    wanted = mode(quant).certified_tokens(spec.certified_tokens)
    if sure < wanted:
        problem = f"margins certify {sure} tokens, expected at least {wanted}"
    elif part.expect not in answer:
        problem = f"expected {part.expect!r} in the answer, got {answer!r}"
    if problem and quant == "fp32" and not spec.streamed:
        raise UsageError(f"prompt {part.index} of {spec.name} ({prompt!r}): {problem}; choose another prompt")
    return problem


@dataclass(frozen=True)
class _Job:
    """A sequence to run: its ids, how many greedy ones to add, and how many of the most likely tokens to keep."""

    ids: list[int]
    new_tokens: int
    top: int


def _corpus_jobs(spec: ModelSpec, quant: str, tokenizer: Tokenizer, taken: int) -> list[_Job]:
    """Pieces of the corpus that fill up ``taken`` positions; of a streamed model the same few whatever is taken."""
    positions = spec.positions if quant == "fp32" else min(spec.positions, spec.quant_positions)
    left, longest = (STREAMED_CORPUS, STREAMED_CORPUS) if spec.streamed else (positions - taken, spec.context)
    return [_Job(ids, 0, CORPUS_TOP) for ids in corpus.pieces(tokenizer, left, longest)]


def _positions_of(
    jobs: Sequence[_Job], exact: Reference, eager: Reference | None, draft: Draft, *, as_drafted: bool
) -> list[PromptGolden]:
    """Every sequence with its float64 greedy continuation, or the drafted one, and the error of eager over it, NaN
    without."""
    whole = [list(job.ids) for job in jobs]
    found: dict[int, PromptGolden] = {}
    while pending := [row for row in range(len(jobs)) if row not in found]:
        starts = [len(ids) for ids in whole]
        for row in pending:
            missing = len(jobs[row].ids) + jobs[row].new_tokens - starts[row]
            whole[row] += draft.greedy(whole[row], missing) if missing else []
        passes = exact.passes([whole[row] for row in pending], tuple(exact.layers), _norms)
        for row, result in zip(pending, passes, strict=True):
            wrong = None if as_drafted else _first_wrong(whole[row], starts[row], result.logits)
            if wrong is None:
                found[row] = _positions(whole[row], result, jobs[row])
            else:
                whole[row] = [*whole[row][:wrong], int(result.logits[wrong - 1].argmax())]
    parts = [found[row] for row in range(len(jobs))]
    if eager is None:
        return parts
    results = eager.passes([part.ids.tolist() for part in parts])
    return [
        replace(part, **_eager(judge.teacher_forced(part, result.logits, "fp32")))
        for part, result in zip(parts, results, strict=True)
    ]


def _first_wrong(ids: Sequence[int], start: int, logits: np.ndarray) -> int | None:
    """Index of the first id from ``start`` on that is not the argmax of the row before it."""
    wrong = np.flatnonzero(logits[start - 1 : -1].argmax(axis=1) != ids[start:])
    return start + int(wrong[0]) if wrong.size else None


def _norms(value: torch.Tensor) -> np.ndarray:
    return value.norm(dim=1).numpy().astype(np.float32)


def _positions(ids: Sequence[int], result: Pass, job: _Job) -> PromptGolden:
    logprobs = log_softmax(result.logits)
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, : job.top]
    best = np.take_along_axis(logprobs, order, axis=1)
    return PromptGolden(
        text="",
        expect="",
        prompt_length=len(job.ids),
        ids=np.array(ids, np.int32),
        top_ids=order.astype(np.min_scalar_type(result.logits.shape[1])),
        top_logprobs=best.astype(np.float32),
        log_rest=rest_of(logprobs, order).astype(np.float32),
        logsumexp=np.asarray(scipy.special.logsumexp(result.logits, axis=1)).astype(np.float32),
        margins=(best[:, 0] - best[:, 1]).astype(np.float32),
        residual_norms=np.stack(list(result.seen.values())),
        eager_error=float("nan"),
    )


def _eager(forced: judge.TeacherForced) -> dict[str, Any]:
    """What a golden keeps of PyTorch eager: two digits, since it is another number on another CPU."""

    def short(value: float) -> float:
        return float(f"{value:.2g}")

    divergence = short(forced.divergence.mean()), short(forced.divergence.max())
    return {"eager_error": short(forced.max_error), "eager_kl": divergence, "eager_same": forced.same_top1}
