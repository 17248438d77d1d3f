"""All that assay knows of a compiler: hand it a PyTorch program, get something that can be run.

An adapter module in this package exposes ``BACKEND: Backend``. No other module of assay imports a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch


class Unsupported(Exception):
    """The backend says it cannot compile this program; the message is the reason shown in the ledger."""


class NotRunHere(Exception):
    """The target cannot run on this machine; the message is the reason shown in the ledger."""


class Finding(Exception):
    """Compiled code crashed, met an illegal instruction, wrote where it must not, or hung: a failed case."""


@dataclass(frozen=True)
class TargetStatus:
    """Whether and how a target runs on this machine. ``reason`` says why not, or is empty."""

    name: str
    isa: str
    runs: bool
    executor: str  # "in-process", "runner", "qemu-riscv64 7.2 vlen=256", "bochs sapphire_rapids", ...
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """What to compile: a PyTorch callable with example inputs.

    ``dynamic`` names each input's run-time dimensions: ``({0: "M"}, {})`` makes dim 0 of input 0 symbolic; equal
    names are equal sizes. ``weights`` are the positions of inputs that a compiler may repack before a call.
    """

    name: str
    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    dynamic: tuple[Mapping[int, str], ...]
    weights: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What a compiler says of one overload of the operator library. ``state``: covered, decomposed, missing, left out;
    ``how``: by what, or why not. ``core``: whether PyTorch counts it to the core operator set."""

    name: str
    core: bool
    state: str
    how: str


class Compiled(Protocol):
    """A compiled program, bound to a target."""

    artifact: str  # hash of the machine code: equal hash, same code
    edges: Mapping[str, int]  # sizes at which the schedule changes, by dimension name: where shapes should straddle

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        """Run on inputs of any strides and offset. Outputs start poisoned. Raises :class:`Finding`."""
        ...

    def stages(self) -> Sequence[tuple[str, Callable[..., list[torch.Tensor]]]]:
        """Named executable stages of the compilation, first to last, for bisection; may be empty."""
        ...


class Point(Protocol):
    """A value inside a compiled model that PyTorch's own run of the model has too.

    ``name`` is the path of the module that it leaves, with ``:in`` behind it that of the module which it enters.
    ``ops`` are the operations that make it out of the points before it, ``source`` is the Python line behind the last.
    """

    @property
    def name(self) -> str: ...

    @property
    def ops(self) -> tuple[str, ...]: ...

    @property
    def source(self) -> str: ...


class LanguageModel(Protocol):
    """A compiled causal language model. Token ids are Python ints, logits float32 numpy arrays."""

    vocabulary: int
    context: int  # most tokens the cache holds

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """[len(ids), vocabulary] logits of a fresh sequence (teacher forcing)."""
        ...

    def reset(self) -> None: ...

    def prefill(self, ids: Sequence[int]) -> int:
        """Feed ids into the cache; return the greedy next id."""
        ...

    def decode(self, token: int) -> int:
        """Feed one id into the cache; return the greedy next id."""
        ...

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sampling: Mapping[str, float],
        stop: Collection[int],
        on_token: Callable[[int, int], None],
        *,
        window: int = 0,
    ) -> list[list[int]]:
        """New ids for every prompt, each as if it were asked alone: until a stop id (included) or ``new_tokens``.

        ``sampling`` is empty for greedy ids, or sets some of ``temperature`` (0: greedy), ``top_k`` (0: all),
        ``top_p``, ``min_p``, ``repetition_penalty`` (1: none) and ``seed``; the same seed gives the same ids.
        ``on_token(index of the prompt, id)`` is called as they come. With a ``window`` the one answer goes on when
        the context is full: from its last ``window`` ids, fed as a prompt of their own.
        """
        ...

    def residuals(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Residual stream after each layer, by layer name: [len(ids), hidden]."""
        ...

    def points(self, *, cached: bool = False) -> Sequence[Point]:
        """Where values can be compared, in the order of computation: without a cache, or in the token loop."""
        ...

    def trace(self, ids: Sequence[int], names: Sequence[str], *, prompt: int | None = None) -> dict[str, np.ndarray]:
        """Values at the named points, [len(ids), width]. Without ``prompt`` of a fresh sequence in one piece; else the
        first ``prompt`` ids are fed into the cache as a prompt and the others one by one."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """weight_bytes, kv_bytes, arena_bytes, compile_ms, kernels, quant, target, threads."""
        ...


class Backend(Protocol):
    """A compiler under test."""

    name: str

    def targets(self) -> list[TargetStatus]: ...

    def modes(self) -> Mapping[str, tuple[str, ...]]:
        """Names this backend knows: {"quant": (...), "kv": (...), "attention": (...)}."""
        ...

    def coverage(self) -> Sequence[Claim]:
        """The overloads this backend knows of; none if it makes no claims."""
        ...

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> Compiled:
        """Raises :class:`Unsupported` or :class:`NotRunHere`."""
        ...

    def compile_to_time(self, program: Program, target: str) -> Compiled:
        """The same program in this process, without what finds faults and costs time. Raises as ``compile`` does."""
        ...

    def load_model(
        self,
        source: str,
        target: str,
        *,
        quant: str = "fp32",
        kv: str = "fp32",
        threads: int = 1,
        context: int | None = None,
    ) -> LanguageModel: ...
