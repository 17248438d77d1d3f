"""A model of the full-model stage, as data. Each file in ``e2e/`` holds one ``MODEL``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One prompt. A ``chat`` prompt is a user's message, wrapped in the model's chat template; else it is raw text.

    ``expect`` is a text that the greedy answer must contain: the check a person can read.
    """

    text: str
    chat: bool = True
    expect: str = ""


@dataclass(frozen=True)
class ModelSpec:
    """One model: where its weights are, what it is asked, and how far its answers are checked.

    ``source`` is ``package:MODULE/FILE`` (a file that an installed Python package carries), ``synthetic:SEED`` (weights
    drawn from the seed in the geometry of ``config``), or the path of a GGUF file or a Hugging Face folder.
    ``context`` bounds prompt + new tokens; ``new_tokens`` greedy tokens are golden for every prompt, of which at
    least ``certified_tokens`` must have a top-2 margin that no rounding of the stage can turn. A golden of a lossy mode
    holds the first ``quant_prompts`` prompts of which that is true. Pieces of a fixed text fill up the prompts to
    ``positions`` for comparing distributions. ``streamed``: too large for memory in PyTorch, which reads it layer by
    layer; its greedy tokens are drafted by a compiler under test and verified by PyTorch.
    ``costs`` has the measured divergence from fp32 of modes that cost this model more or less than is usual, in nats.
    """

    name: str
    source: str
    prompts: tuple[Prompt, ...]
    context: int
    new_tokens: int = 64
    certified_tokens: int = 16
    quants: tuple[str, ...] = ("fp32",)
    quant_prompts: int = 4
    positions: int = 2000
    streamed: bool = False
    emulated_tokens: int = 0  # new tokens checked where the target is emulated; 0: too large to run there
    costs: Mapping[str, float] = field(default_factory=dict, hash=False)
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    install: str = ""  # how to get the weights, for the message when they are missing

    @property
    def seed(self) -> int | None:
        """The seed of synthetic weights; None for others."""
        kind, _, rest = self.source.partition(":")
        return int(rest) if kind == "synthetic" else None
