"""Makes a golden with PyTorch alone, and says how two goldens differ."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special
import torch

from assay.errors import UsageError
from assay.tokens.golden import TOP, Golden, PromptGolden
from assay.tokens.judge import log_softmax
from assay.tokens.reference import Reference
from assay.tokens.source import weights_hash
from assay.tokens.spec import ModelSpec, Prompt
from assay.tokens.tokenizer import Tokenizer, load_tokenizer


def prompt_text(prompt: Prompt, tokenizer: Tokenizer) -> str:
    """What is tokenised for ``prompt``."""
    return tokenizer.chat(prompt.text) if prompt.chat else prompt.text


def make_golden(spec: ModelSpec, path: Path, progress: Callable[[str], None] = lambda _: None) -> Golden:
    """The fp32 golden of ``spec`` from the weights at ``path``.

    Greedy tokens are drafted by eager float32 with PyTorch's KV cache; one plain float64 pass over prompt and draft
    must predict each of them, and where it does not the draft is continued from float64's own choice.

    Raises :class:`UsageError` for a prompt that is too long for the context, whose margins certify too few tokens, or
    whose answer lacks what it should contain.
    """
    tokenizer = load_tokenizer(path)
    exact, eager = Reference(path), Reference.eager(path)
    prompts = []
    for index, prompt in enumerate(spec.prompts):
        text = prompt_text(prompt, tokenizer)
        ids = tokenizer.encode(text)
        if len(ids) + spec.new_tokens > spec.context:
            raise UsageError(f"prompt {index} of {spec.name}: {len(ids)} tokens + {spec.new_tokens} > {spec.context}")
        golden = _prompt_golden(prompt, text, ids, exact, eager, spec.new_tokens)
        answer = tokenizer.decode(golden.new_ids)
        sure = golden.certified("fp32")
        progress(f"p{index:02} {sure} of {spec.new_tokens} tokens certified, {prompt.text[:40]!r}: {answer[:60]!r}")
        if sure < spec.certified_tokens:
            raise UsageError(
                f"prompt {index} of {spec.name} ({prompt.text[:40]!r}): margins certify {sure} tokens, expected at "
                f"least {spec.certified_tokens}; choose another prompt"
            )
        if prompt.expect not in answer:
            raise UsageError(f"prompt {index} of {spec.name}: expected {prompt.expect!r} in the answer, got {answer!r}")
        prompts.append(golden)
    return Golden(spec.name, "fp32", tuple(exact.layers), tuple(prompts), provenance(spec, path))


def provenance(spec: ModelSpec, path: Path) -> dict[str, Any]:
    """Where a golden made here and now comes from."""
    import tokenizers
    import transformers

    kind, _, rest = spec.source.partition(":")
    return {
        "source": spec.source,
        "weights_sha256": weights_hash(path),
        "seed": int(rest) if kind == "synthetic" else None,
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


def _prompt_golden(
    prompt: Prompt, text: str, ids: list[int], exact: Reference, eager: Reference, new_tokens: int
) -> PromptGolden:
    whole, logits, stream = _greedy(ids, exact, eager, new_tokens)
    logprobs = log_softmax(logits)
    logsumexp = np.asarray(scipy.special.logsumexp(logits, axis=1))
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :TOP]
    top = np.take_along_axis(logprobs, order, axis=1)
    return PromptGolden(
        text=text,
        expect=prompt.expect,
        prompt_length=len(ids),
        ids=np.array(whole, np.int32),
        top_ids=order.astype(np.int32),
        top_logprobs=top.astype(np.float32),
        logsumexp=logsumexp.astype(np.float32),
        margins=(top[:, 0] - top[:, 1]).astype(np.float32),
        residual_norms=np.stack([np.linalg.norm(h, axis=1) for h in stream.values()]).astype(np.float32),
        eager_error=float(f"{_eager_error(eager, whole, order, top):.3g}"),
    )


def _greedy(
    ids: list[int], exact: Reference, eager: Reference, new_tokens: int
) -> tuple[list[int], np.ndarray, dict[str, np.ndarray]]:
    """Prompt and float64's greedy continuation, with float64's logits and residual stream over both."""
    end = len(ids) + new_tokens
    whole = list(ids)
    while True:
        start = len(whole)
        whole += eager.greedy(whole, end - start)
        logits, stream = exact.residuals(whole)
        wrong = np.flatnonzero(logits[start - 1 : -1].argmax(axis=1) != whole[start:])
        if not wrong.size:
            return whole, logits, stream
        first = start + int(wrong[0])
        whole = [*whole[:first], int(logits[first - 1].argmax())]


def _eager_error(eager: Reference, ids: list[int], order: np.ndarray, top: np.ndarray) -> float:
    logprobs = log_softmax(eager.logits(ids))
    return float(np.abs(np.take_along_axis(logprobs, order, axis=1) - top).max())


def difference(old: Golden, new: Golden) -> list[str]:
    """What moved from ``old`` to ``new``, one line each, with the provenance that changed; empty when nothing did."""
    before, after = old.tensors(), new.tensors()
    lines = [f"{name}: gone" for name in before.keys() - after.keys()]
    lines += [f"{name}: new" for name in after.keys() - before.keys()]
    lines += [
        f"p{index:02}.text: {p.text!r} -> {q.text!r}"
        for index, (p, q) in enumerate(zip(old.prompts, new.prompts, strict=False))
        if p.text != q.text
    ]
    moved: dict[str, int] = {}
    for name in sorted(before.keys() & after.keys()):
        a, b = before[name], after[name]
        if a.shape != b.shape:
            lines.append(f"{name}: shape {a.shape} -> {b.shape}")
        elif a.dtype == np.float32:
            if distance := int(ulps(a, b).max(initial=0)):
                moved[name] = distance
        elif (places := np.argwhere(a != b)).size:
            lines.append(f"{name}: {len(places)} of {a.size} differ, first at {tuple(places[0].tolist())}")
    if moved:
        worst = max(moved, key=lambda name: moved[name])
        lines.append(f"at most {moved[worst]} ulp in {len(moved)} of {len(before)} tensors, worst {worst}")
    if lines:
        lines += [
            f"{key} {old.provenance.get(key)} -> {value}"
            for key, value in new.provenance.items()
            if old.provenance.get(key) != value
        ]
    return lines


def ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of float32 arrays of one shape in units of the last place: representable numbers between them."""

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(a) - ordered(b))
