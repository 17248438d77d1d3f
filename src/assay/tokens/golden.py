"""A stored golden: what PyTorch says in float64 about every prompt of one model, with where it comes from.

One safetensors file per model and quantisation, so that it is replaced whole or not at all. Per prompt ``pNN``, for
each of its T positions (prompt and new tokens; position t predicts token t+1), rounded once to float32:

* ``pNN.ids`` [T] the prompt's ids and the greedy continuation
* ``pNN.top_ids``, ``pNN.top_logprobs`` [T, 256] the most likely next tokens, best first, and their log-probabilities
* ``pNN.log_rest`` [T] log-probability of all other tokens together
* ``pNN.logsumexp``, ``pNN.margins`` [T] normaliser, and distance of the two best log-probabilities
* ``pNN.residual_norms`` [layers, T] Euclidean norm of the residual stream after each layer

Pieces ``cNN`` of a fixed text, 64 tokens deep and without continuation, follow in the same form: they fill up the
positions over which distributions are compared. The header carries the provenance as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from assay.errors import WeightsError
from assay.tokens.spec import ModelSpec, Prompt
from assay.tokens.tokenizer import Tokenizer
from assay.tokens.tolerance import certified, mode, tau

FORMAT = 2
TOP = 256
CORPUS_TOP = 64
FIELDS = ("ids", "top_ids", "top_logprobs", "log_rest", "logsumexp", "margins", "residual_norms")


@dataclass(frozen=True)
class PromptGolden:
    """The golden of one prompt, or of a piece of the corpus; see the module's docstring for the arrays."""

    text: str  # as it was tokenised, chat template applied; empty for a piece of the corpus
    expect: str
    prompt_length: int
    ids: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    log_rest: np.ndarray
    logsumexp: np.ndarray
    margins: np.ndarray
    residual_norms: np.ndarray
    eager_error: float  # largest error of PyTorch eager float32 over the top log-probabilities, in nats
    index: int = 0  # of the prompt in the model's file
    eager_kl: tuple[float, float] = (0.0, 0.0)  # its divergence from float64 in nats: mean, and largest
    eager_same: int = 0  # positions at which its first choice is float64's
    eager_worst: float = 0.0  # its largest error in any part of the stored golden

    @property
    def prompt_ids(self) -> list[int]:
        return self.ids[: self.prompt_length].tolist()

    @property
    def new_ids(self) -> list[int]:
        return self.ids[self.prompt_length :].tolist()

    @property
    def top_logits(self) -> np.ndarray:
        return self.top_logprobs[:, 0] + self.logsumexp

    @property
    def predicting(self) -> slice:
        """The positions whose prediction is a new token."""
        return slice(self.prompt_length - 1, len(self.ids) - 1)

    def head(self, positions: int) -> PromptGolden:
        """The same golden over its first ``positions`` tokens."""
        cut = {name: getattr(self, name)[:positions] for name in FIELDS if name != "residual_norms"}
        return replace(self, **cut, residual_norms=self.residual_norms[:, :positions])

    def allowed(self, quant: str) -> np.ndarray:
        """[T] allowed error of a log-probability, in nats: τ, or twice eager's largest where ties carry further."""
        most = tau(quant, self.top_logits)
        return np.maximum(most, 2 * self.eager_worst) if mode(quant).rounds_activations else most

    def certified(self, quant: str) -> int:
        """How many leading new tokens the margins certify."""
        return certified(self.margins[self.predicting], self.allowed(quant)[self.predicting])

    def facts(self) -> dict[str, Any]:
        """What stands in the header."""
        names = ("text", "expect", "prompt_length", "eager_error", "eager_kl", "eager_same", "index")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Golden:
    """All prompts of one model, and ``provenance``: weights hash, seed, how the ids came about, versions, host."""

    model: str
    quant: str
    layers: tuple[str, ...]
    prompts: tuple[PromptGolden, ...]
    provenance: dict[str, Any]
    corpus: tuple[PromptGolden, ...] = ()

    def parts(self) -> Iterator[tuple[str, PromptGolden]]:
        """Prompts and pieces of the corpus, by name."""
        yield from ((f"p{index:02}", part) for index, part in enumerate(self.prompts))
        yield from ((f"c{index:02}", part) for index, part in enumerate(self.corpus))

    def tensors(self) -> dict[str, np.ndarray]:
        return {f"{key}.{name}": getattr(part, name) for key, part in self.parts() for name in FIELDS}

    def with_worst(self) -> Golden:
        """The same, in which every part knows the largest error of PyTorch eager in any of them."""
        worst = max((part.eager_error for _, part in self.parts()), default=0.0)
        prompts, pieces = (
            tuple(replace(part, eager_worst=worst) for part in parts) for parts in (self.prompts, self.corpus)
        )
        return replace(self, prompts=prompts, corpus=pieces)

    def save(self, path: Path) -> None:
        """Replace ``path`` in one step: killed at any moment, the old file stands."""
        header = {"model": self.model, "quant": self.quant, "layers": self.layers, "format": FORMAT}
        header |= {"prompts": [part.facts() for part in self.prompts], "corpus": [part.facts() for part in self.corpus]}
        header |= {"provenance": self.provenance}
        data = save(self.tensors(), metadata={"golden": json.dumps(header, sort_keys=True)})
        _sweep(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove what writers of ``path`` left behind that were killed."""
    for left in path.parent.glob(f".{path.name}.*"):
        if not Path("/proc", left.name.rpartition(".")[2]).exists():
            left.unlink(missing_ok=True)


def load_golden(path: Path) -> Golden:
    """Read a golden. Raises :class:`WeightsError` when there is none or it is damaged."""
    if not path.is_file():
        raise WeightsError(
            f"opening golden={path}: no such file; write it with: python golden/regenerate.py --model NAME"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads(file.metadata()["golden"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if header["format"] != FORMAT:
            raise WeightsError(f"reading golden={path}: format={header['format']}, expected {FORMAT}; regenerate it")
        return _golden(header, arrays)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"reading golden={path}: damaged ({error}); restore it from version control") from error


def _golden(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Golden:
    def parts(kind: str, letter: str) -> tuple[PromptGolden, ...]:
        return tuple(
            PromptGolden(**(facts | {name: arrays[f"{letter}{i:02}.{name}"] for name in FIELDS}))
            for i, facts in enumerate(header[kind])
        )

    return Golden(
        model=header["model"],
        quant=header["quant"],
        layers=tuple(header["layers"]),
        prompts=parts("prompts", "p"),
        corpus=parts("corpus", "c"),
        provenance=header["provenance"],
    ).with_worst()


def check_belongs(golden: Golden, spec: ModelSpec, quant: str, weights_sha256: str) -> None:
    """Raise :class:`WeightsError` unless ``golden`` is of this model, mode, seed and weights."""
    again = f"golden/regenerate.py --model {spec.name} --quant {quant}"
    what = f"golden of model={spec.name} quant={quant}"
    if (golden.model, golden.quant) != (spec.name, quant):
        raise WeightsError(
            f"{what}: the file holds that of model={golden.model} quant={golden.quant}; restore it, or run {again}"
        )
    if golden.provenance["seed"] != spec.seed:
        raise WeightsError(
            f"{what}: it is of seed={golden.provenance['seed']}, the weights are of seed={spec.seed}; give the weights "
            f"of that seed, or run {again}"
        )
    stored = golden.provenance["weights_sha256"]
    if stored != weights_sha256:
        raise WeightsError(
            f"{what}: it is of other weights (sha256 {stored[:12]}…, these are {weights_sha256[:12]}…); give the "
            f"weights it was made from, have PyTorch verify these (assay tokens --live), or run {again}"
        )


def check_prompts(golden: Golden, spec: ModelSpec, tokenizer: Tokenizer) -> None:
    """Raise :class:`WeightsError` unless this tokenizer makes the ids of ``golden`` out of the prompts of ``spec``."""
    what, again = f"golden of model={spec.name}", f"golden/regenerate.py --model {spec.name} --quant {golden.quant}"
    for part in golden.prompts:
        text = prompt_text(spec.prompts[part.index], tokenizer) if part.index < len(spec.prompts) else ""
        if text != part.text:
            raise WeightsError(
                f"{what}: it is of other prompts or another chat template than e2e/ says (prompt {part.index}: "
                f"{part.text[:40]!r}, now {text[:40]!r}); run {again}"
            )
        if (ids := tokenizer.encode(text)) != part.prompt_ids:
            place = next((i for i, (a, b) in enumerate(zip(ids, part.prompt_ids, strict=False)) if a != b), len(ids))
            raise WeightsError(
                f"{what}: this is the tokenizer of another model: prompt {part.index} gives {len(ids)} ids, the golden "
                f"has {part.prompt_length}, first different at {place}; give the tokenizer that belongs to the weights"
            )


def prompt_text(prompt: Prompt, tokenizer: Tokenizer) -> str:
    """What is tokenised for ``prompt``."""
    return tokenizer.chat(prompt.text) if prompt.chat else prompt.text
