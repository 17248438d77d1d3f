"""A model of the full-model stage, as data. Each file in ``e2e/`` holds one ``MODEL``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from assay.errors import UsageError

# Ids of the special tokens in the tokenizer that comes with synthetic weights, as a config.json names them.
SPECIAL_IDS = MappingProxyType({"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258})


@dataclass(frozen=True)
class Prompt:
    """One prompt. A ``chat`` prompt is a user's message, wrapped in the model's chat template; else it is raw text.

    ``expect`` is a text that the greedy answer must contain: the check a person can read.
    """

    text: str
    chat: bool = True
    expect: str = ""


# More than any golden of a large model holds, as a mode may leave one of them without certain tokens.
PROMPTS = (
    Prompt("What is the capital of France?"),
    Prompt("Strike while the iron is hot."),
    Prompt("anvil", chat=False),
    Prompt("0123456789", chat=False),
    Prompt("def fibonacci(n):", chat=False),
    Prompt("Name three metals.", chat=False),
    Prompt("The hammer and the", chat=False),
    Prompt("x", chat=False),
)


@dataclass(frozen=True)
class ModelSpec:
    """One model: where its weights are, what it is asked, and how far its answers are checked.

    ``source`` is ``package:MODULE/FILE`` (a file that an installed Python package carries), ``synthetic:SEED`` (weights
    drawn from the seed in the geometry of ``config``), or the path of a GGUF file or a Hugging Face folder.
    ``context`` bounds prompt + new tokens; ``new_tokens`` greedy tokens are golden for every prompt, of which at
    least ``certified_tokens`` must have a top-2 margin that no rounding of the stage can turn. A golden of a lossy mode
    holds the first ``quant_prompts`` prompts of which that is true. Pieces of a fixed text fill up the prompts to
    ``positions`` for comparing distributions, of a lossy mode to ``quant_positions``. ``streamed``: too large for
    memory in PyTorch, which reads it layer by layer; its greedy tokens are drafted by a compiler under test and
    verified by PyTorch. Its positions are few.
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
    quant_positions: int = 2000
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

    def first_layers(self, depth: int) -> ModelSpec:
        """The model of the first ``depth`` layers; their weights, drawn by name, are those of the whole model.

        Raises :class:`UsageError` where the weights are not drawn from a seed, or there are not so many layers.
        """
        layers = self.config.get("num_hidden_layers", 0)
        if self.seed is None or not 1 <= depth <= layers:
            raise UsageError(
                f"cutting model={self.name} to depth={depth}: expected synthetic weights and 1 to {layers} layers"
            )
        config = {**self.config, "num_hidden_layers": depth}
        return replace(self, name=f"{self.name}-{depth}-layers", config=config)
