"""A stored golden: what PyTorch says in float64 about every prompt of one model, with where it comes from.

One safetensors file per model and quantisation, so that it is replaced whole or not at all. Per prompt ``pNN``, for
each of its T positions (prompt and new tokens; position t predicts token t+1), rounded once to float32:

* ``pNN.ids`` [T] the prompt's ids and the greedy continuation
* ``pNN.top_ids``, ``pNN.top_logprobs`` [T, 50] the most likely next tokens, best first, and their log-probabilities
* ``pNN.logsumexp``, ``pNN.margins`` [T] normaliser, and distance of the two best log-probabilities
* ``pNN.residual_norms`` [layers, T] Euclidean norm of the residual stream after each layer

The header carries the provenance as JSON.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from assay.errors import WeightsError
from assay.tokens.spec import ModelSpec
from assay.tokens.tolerance import certified, tau

FORMAT = 1
TOP = 50
FIELDS = ("ids", "top_ids", "top_logprobs", "logsumexp", "margins", "residual_norms")


@dataclass(frozen=True)
class PromptGolden:
    """The golden of one prompt; see the module's docstring for the arrays."""

    text: str  # as it was tokenised, chat template applied
    expect: str
    prompt_length: int
    ids: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    logsumexp: np.ndarray
    margins: np.ndarray
    residual_norms: np.ndarray
    eager_error: float  # largest error of PyTorch eager float32 over the top log-probabilities, in nats

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
        cut = {name: getattr(self, name)[..., :positions] for name in ("logsumexp", "margins", "residual_norms")}
        cut |= {name: getattr(self, name)[:positions] for name in ("ids", "top_ids", "top_logprobs")}
        return replace(self, **cut)

    def certified(self, quant: str) -> int:
        """How many leading new tokens the margins certify."""
        return certified(self.margins[self.predicting], tau(quant, self.top_logits[self.predicting]))


@dataclass(frozen=True)
class Golden:
    """All prompts of one model, and ``provenance``: weights hash, seed, versions, host."""

    model: str
    quant: str
    layers: tuple[str, ...]
    prompts: tuple[PromptGolden, ...]
    provenance: dict[str, Any]

    def tensors(self) -> dict[str, np.ndarray]:
        return {f"p{i:02}.{name}": getattr(p, name) for i, p in enumerate(self.prompts) for name in FIELDS}

    def save(self, path: Path) -> None:
        """Replace ``path`` in one step: killed at any moment, the old file stands."""
        prompts = [
            {"text": p.text, "expect": p.expect, "prompt_length": p.prompt_length, "eager_error": p.eager_error}
            for p in self.prompts
        ]
        header = {"model": self.model, "quant": self.quant, "layers": self.layers, "prompts": prompts}
        header |= {"format": FORMAT, "provenance": self.provenance}
        data = save(self.tensors(), metadata={"golden": json.dumps(header, sort_keys=True)})
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


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
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"reading golden={path}: damaged ({error}); restore it from version control") from error
    if header["format"] != FORMAT:
        raise WeightsError(f"reading golden={path}: format={header['format']}, expected {FORMAT}; regenerate it")
    prompts = tuple(
        PromptGolden(**facts, **{name: arrays[f"p{i:02}.{name}"] for name in FIELDS})
        for i, facts in enumerate(header["prompts"])
    )
    return Golden(header["model"], header["quant"], tuple(header["layers"]), prompts, header["provenance"])


def check_belongs(golden: Golden, spec: ModelSpec, weights_sha256: str, texts: list[str]) -> None:
    """Raise :class:`WeightsError` unless ``golden`` is of this model, these weights and these prompts."""
    stored = golden.provenance["weights_sha256"]
    if stored != weights_sha256:
        raise WeightsError(
            f"golden of model={golden.model}: it is of other weights (sha256 {stored[:12]}…, these are "
            f"{weights_sha256[:12]}…); give the weights it was made from, or run "
            f"golden/regenerate.py --model {spec.name}"
        )
    if [p.text for p in golden.prompts] != texts:
        raise WeightsError(
            f"golden of model={golden.model}: it is of other prompts or another chat template than e2e/ says; "
            f"run golden/regenerate.py --model {spec.name}"
        )
