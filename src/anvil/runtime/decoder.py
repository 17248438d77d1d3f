"""The token loop's two steps, prefill and decode, over one key/value cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from anvil.errors import InputError
from anvil.runtime.cache import CacheState
from anvil.runtime.executable import Executable
from anvil.runtime.step import Step


class Decoder:
    """Feeds tokens of a batch of sequences through two plans and gives the greedy next token of each.

    Both plans take ids i64 [B, S], past i64 [B] and last i64 [B] (the row of each sequence whose successor is asked
    for) and give logits f32 [B, 1, V] and next i64 [B, 1]. Prompts are cut into chunks of ``chunk`` tokens, which
    changes no bit. Nothing here calls PyTorch, and :meth:`decode` allocates nothing but its result.
    """

    def __init__(
        self,
        prefill: Executable,
        decode: Executable,
        *,
        batch: int,
        capacity: int,
        chunk: int,
        threads: int,
    ) -> None:
        self.cache = CacheState(batch, capacity)
        self.batch = batch
        self._chunk = min(chunk, capacity)
        self._sizes = {"B": batch, "C": capacity}
        self._prefill_plan, self._decode_plan = prefill, decode
        self._threads = threads
        self.watch: tuple[str, ...] = ()  # graph nodes whose values are kept, one entry of ``seen`` per step
        self.seen: list[dict[str, torch.Tensor]] = []
        self._start()

    def _start(self) -> None:
        """Bind both plans, the prompt's at its largest size so that the arena never grows again."""
        self._prefill = Step(self._prefill_plan, self._sizes | {"S": self._chunk}, threads=self._threads)
        self._decode = Step(self._decode_plan, self._sizes | {"S": 1}, threads=self._threads, waves=True)
        self._prefill.bind(self._sizes | {"S": self._chunk})
        self._bound = self._chunk
        self._ids, self._past, last = (self._decode.inputs[name] for name in self._decode.argument_order)
        last[:] = 0
        self._next = self._decode.outputs[self._decode.result_order[1]]
        self._logits = self._logits_of(self._decode)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of all sequences."""
        buffers = self._decode_plan.plan.buffers
        nbytes = self._decode_plan.binding.nbytes(self._sizes | {"S": 1})
        return sum(nbytes[name] for name, buffer in buffers.items() if buffer.role == "cache")

    def set_threads(self, threads: int) -> None:
        """Run on this many threads from now on; results keep their bits."""
        if threads != self._threads:
            self._threads = threads
            self._start()

    @property
    def logits(self) -> np.ndarray:
        """f32 [B, V] behind the last answer, valid until the next call: what a sampler chooses from."""
        return self._logits

    def reset(self) -> None:
        """Begin new sequences; after a crash, in a new process."""
        self.cache.reset()
        if self._prefill.stale or self._decode.stale:
            self._start()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Feed one prompt per sequence (lengths may differ); the greedy next ids, int64 [B].

        Raises :class:`InputError` for an empty prompt, a wrong batch, or more tokens than the cache has room for.
        """
        if len(prompts) != self.batch or not all(len(prompt) for prompt in prompts):
            raise InputError(
                f"prefill: got prompts of lengths {[len(p) for p in prompts]}, expected {self.batch} non-empty ones"
            )
        lengths = [len(prompt) for prompt in prompts]
        padded = [max(lengths)] * self.batch
        self.cache.check_room(padded)
        start = self.cache.past.copy()
        result = np.zeros(self.batch, np.int64)
        logits = np.zeros((self.batch, self._logits_of(self._prefill).shape[1]), np.float32)
        for first in range(0, max(lengths), self._chunk):
            size = min(self._chunk, max(lengths) - first)
            chosen = self._feed(prompts, start, first, size)
            done = [row for row, length in enumerate(lengths) if first < length <= first + size]
            result[done] = chosen[done]
            logits[done] = self._logits_of(self._prefill)[done]
        self._logits = logits
        self.cache.past[:] = start + np.array(lengths, np.int64)
        return result

    def _feed(self, prompts: Sequence[Sequence[int]], start: np.ndarray, first: int, size: int) -> np.ndarray:
        """Run tokens ``first`` to ``first + size`` of every prompt; shorter ones are padded with token 0."""
        step = self._prefill
        if size != self._bound:
            step.bind(self._sizes | {"S": size})
            self._bound = size
        ids, past, last = (step.inputs[name] for name in step.argument_order)
        ids[:] = 0
        for row, prompt in enumerate(prompts):
            part = prompt[first : first + size]
            ids[row, : len(part)] = part
            last[row] = min(max(len(prompt) - 1 - first, 0), size - 1)
        past[:] = start + first
        self._run(step)
        return step.outputs[step.result_order[1]].reshape(self.batch)

    def decode(self, tokens: int | Sequence[int] | np.ndarray, active: np.ndarray | None = None) -> np.ndarray:
        """Feed one token per sequence; the greedy next ids, int64 [B], valid until the next call.

        Where ``active`` (bool [B]) is false the sequence has ended: it does not grow, and its answer means nothing.
        """
        past, last_slot = self.cache.past, self.cache.capacity - 1
        if past.max() > last_slot:
            fed = np.ones(self.batch, bool) if active is None else active
            self.cache.check_room(fed.astype(np.int64).tolist())
        self._ids[:, 0] = tokens
        self._past[:] = past
        np.minimum(self._past, last_slot, out=self._past)  # an idle sequence may be full
        self._run(self._decode)
        past += 1 if active is None else active
        self._logits = self._logits_of(self._decode)
        return self._next.reshape(self.batch)

    def _run(self, step: Step) -> None:
        if self.watch:
            self.seen.append(step.trace(self.watch))
        else:
            step()

    def _logits_of(self, step: Step) -> np.ndarray:
        return step.outputs[step.result_order[0]].reshape(self.batch, -1)
