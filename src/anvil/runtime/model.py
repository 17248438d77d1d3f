"""A compiled causal language model: logits, prefill, decode, generate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from anvil.errors import InputError
from anvil.graph.layers import GraphPoint, op_of
from anvil.quant import WeightRow
from anvil.runtime.decoder import Decoder
from anvil.runtime.executable import Executable
from anvil.runtime.generate import Generation, OnToken, generate
from anvil.runtime.identity import identity
from anvil.runtime.memory import Memory
from anvil.runtime.sample import GREEDY, Sampling

Ids = Sequence[int] | Sequence[Sequence[int]] | np.ndarray | torch.Tensor


@dataclass
class Plans:
    """The three programs of a model, sharing weights: all logits without a cache, and the two steps over one."""

    logits: Executable
    prefill: Executable
    decode: Executable

    def each(self) -> Mapping[str, Executable]:
        return {"logits": self.logits, "prefill": self.prefill, "decode": self.decode}


@dataclass(frozen=True)
class Points:
    """Where the modules of the model begin and end in the graph without a cache, and in that of the token loop."""

    whole: Sequence[GraphPoint]
    steps: Sequence[GraphPoint]


@dataclass
class CompiledModel:
    """A causal language model on one target.

    Sequences are independent of each other: ``batch`` of :meth:`start` says how many go through the token loop side
    by side. ``context`` is the most tokens the cache holds for each. ``layers`` maps layer names to graph nodes.
    """

    plans: Plans
    memory: Memory
    vocabulary: int
    context: int
    chunk: int
    threads: int
    layers: Mapping[str, str] = field(default_factory=dict)
    inside: Points = field(default_factory=lambda: Points([], []))
    compile_ms: dict[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # target, quant, attention
    weights: Sequence[WeightRow] = ()  # every tensor of the model: its mode, bytes, and error where it was measured
    _decoder: Decoder | None = None

    def start(self, batch: int = 1) -> Decoder:
        """The token loop for ``batch`` new sequences."""
        if self._decoder is None or self._decoder.batch != batch:
            self._decoder = Decoder(
                self.plans.prefill,
                self.plans.decode,
                batch=batch,
                capacity=self.context,
                chunk=self.chunk,
                threads=self.threads,
            )
        self._decoder.set_threads(self.threads)
        self._decoder.reset()
        return self._decoder

    @property
    def decoder(self) -> Decoder:
        """The running token loop; a new one of batch 1 if there is none."""
        return self._decoder or self.start()

    def logits(self, ids: Ids) -> np.ndarray:
        """f32 [B, S, V] logits of fresh sequences (or [S, V] for one flat list of ids); the cache is left alone."""
        tokens, flat = self._tokens(ids)
        name = self.plans.logits.plan.inputs[0]
        (values,) = self.plans.logits.run(self._sizes(tokens), {name: tokens}, threads=self.threads)
        return values[0].numpy() if flat else values.numpy()

    def residuals(self, ids: Ids) -> dict[str, np.ndarray]:
        """Value leaving each layer, by layer name: f32 [B, S, D], or [S, D] for one flat list of ids."""
        tokens, flat = self._tokens(ids)
        name = self.plans.logits.plan.inputs[0]
        nodes = list(self.layers.values())
        found = self.plans.logits.trace(self._sizes(tokens), {name: tokens}, nodes, threads=self.threads)
        return {layer: (found[node][0] if flat else found[node]).numpy() for layer, node in self.layers.items()}

    def points(self, *, cached: bool = False) -> Sequence[GraphPoint]:
        """Where modules begin and end in the graph without a cache, or in that of the token loop."""
        return self.inside.steps if cached else self.inside.whole

    def trace(self, ids: Sequence[int], names: Sequence[str], *, prompt: int | None = None) -> dict[str, np.ndarray]:
        """Values at the named points of the model, f32 [len(ids), width].

        Without ``prompt`` of a fresh sequence in one piece; else the first ``prompt`` ids go through the token loop as
        a prompt, the others one by one. Raises :class:`InputError` for a name that is not among ``points``.
        """
        known = {point.name: point.node for point in self.points(cached=prompt is not None)}
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"tracing a model: {unknown} are not among its points, for example {sorted(known)[:8]}")
        nodes = tuple(dict.fromkeys(known[name] for name in names))
        if prompt is None:
            tokens, _ = self._tokens(list(ids))
            argument = {self.plans.logits.plan.inputs[0]: tokens}
            seen = [self.plans.logits.trace(self._sizes(tokens), argument, nodes, threads=self.threads)]
        else:
            seen = self._trace_steps(list(self._checked(ids)), nodes, prompt)
        return {name: torch.cat([step[known[name]][0].flatten(1) for step in seen]).numpy() for name in names}

    def _trace_steps(self, ids: list[int], nodes: tuple[str, ...], prompt: int) -> list[dict[str, torch.Tensor]]:
        decoder = self.start()
        decoder.watch, decoder.seen = nodes, []
        try:
            decoder.prefill([ids[:prompt]])
            for token in ids[prompt:]:
                decoder.decode(token)
        finally:
            seen, decoder.watch, decoder.seen = decoder.seen, (), []
        return seen

    def reset(self) -> None:
        """Forget all tokens fed so far."""
        self.decoder.reset()

    def prefill(self, ids: Sequence[int]) -> int:
        """Feed ids to the one running sequence; the greedy next id."""
        return int(self.decoder.prefill([self._checked(ids)])[0])

    def decode(self, token: int) -> int:
        """Feed one id to the one running sequence; the greedy next id."""
        if not 0 <= token < self.vocabulary:
            self._checked([token])
        return int(self.decoder.decode(token)[0])

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling = GREEDY,
        stop_ids: Collection[int] = (),
        on_token: Callable[[int], None] | None = None,
        window: int = 0,
    ) -> Generation:
        """Continuation of ``prompt`` in a fresh cache; see :func:`anvil.runtime.generate.generate`."""
        show = None if on_token is None else lambda _row, token: on_token(token)
        (result,) = self.generate_batch(
            [prompt], max_new_tokens, sampling=sampling, stop_ids=stop_ids, on_token=show, window=window
        )
        return result

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling = GREEDY,
        stop_ids: Collection[int] = (),
        on_token: OnToken | None = None,
        window: int = 0,
    ) -> list[Generation]:
        """Continuations of ``prompts`` side by side, each the same as alone; as :meth:`generate`."""
        checked = [self._checked(prompt) for prompt in prompts]
        if not checked:
            raise InputError("generating: prompts=[], expected at least one prompt")
        return generate(
            self.start(len(checked)),
            checked,
            max_new_tokens,
            sampling=sampling,
            stop_ids=stop_ids,
            on_token=on_token,
            window=window,
        )

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sampling: Mapping[str, Any],
        stop: Collection[int],
        on_token: OnToken,
        *,
        window: int = 0,
    ) -> list[list[int]]:
        """The ids of :meth:`generate_batch`; ``sampling`` holds fields of :class:`Sampling`."""
        options = {"sampling": Sampling(**sampling), "stop_ids": stop, "on_token": on_token, "window": window}
        results = self.generate_batch(prompts, new_tokens, **options)
        return [result.ids for result in results]

    def facts(self) -> dict[str, Any]:
        """Bytes held, times of compilation stages and of kernels not in the cache (ms), kernel and row counts."""
        plans = self.plans.each()
        return {
            **self.labels,
            "threads": self.threads,
            "context": self.context,
            "weight_bytes": self.memory.constant_bytes(),
            "kv_bytes": self.decoder.cache_bytes,
            "arena_bytes": self.memory.block_bytes("arena"),
            "compile_ms": dict(self.compile_ms),
            "kernel_ms": dict(self.memory.library.compile_ms),
            "ops": sorted({op_of(row.node) for plan in plans.values() for row in plan.plan.rows}),
            "kernels": len({name for plan in plans.values() for name in plan.plan.kernels}),
            "rows": {name: len(plan.plan.rows) for name, plan in plans.items()},
            "artifact": identity(self.memory.library.key, (plans["prefill"].plan, plans["decode"].plan)),
        }

    def _tokens(self, ids: Ids) -> tuple[torch.Tensor, bool]:
        """ids as i64 [B, S], and whether they came as one flat list."""
        tokens = torch.as_tensor(ids, dtype=torch.int64)
        flat = tokens.ndim == 1
        tokens = tokens[None] if flat else tokens
        if tokens.ndim != 2 or not tokens.numel():
            raise InputError(f"computing logits: ids have shape={tuple(tokens.shape)}, expected [batch, tokens >= 1]")
        self._checked(tokens.reshape(-1).tolist(), limit=False)
        if tokens.shape[1] > self.context:
            raise self._too_long(tokens.shape[1])
        return tokens, flat

    def _checked(self, ids: Sequence[int], *, limit: bool = True) -> Sequence[int]:
        """ids that are in the vocabulary and, with ``limit``, no longer than the context."""
        if limit and len(ids) > self.context:
            raise self._too_long(len(ids))
        wrong = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise InputError(f"feeding ids: id={wrong}, expected 0..{self.vocabulary - 1}; was another tokenizer used?")
        return ids

    def _too_long(self, tokens: int) -> InputError:
        return InputError(
            f"feeding a prompt: tokens={tokens}, expected at most context={self.context}; shorten it or compile with "
            "a larger context="
        )

    @staticmethod
    def _sizes(tokens: torch.Tensor) -> dict[str, int]:
        return {"B": tokens.shape[0], "S": tokens.shape[1]}
