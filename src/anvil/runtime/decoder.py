"""The token loop's two steps, prefill and decode, over one key/value cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
        self._start()

    def _start(self) -> None:
        """Bind both plans, the prompt's at its largest size so that the arena never grows again."""
        self._prefill = Step(self._prefill_plan, self._sizes | {"S": self._chunk}, threads=self._threads)
        self._decode = Step(self._decode_plan, self._sizes | {"S": 1}, threads=self._threads)
        self._prefill.bind(self._sizes | {"S": self._chunk})
        self._bound = self._chunk
        self._ids, self._past, last = (self._decode.inputs[name] for name in self._decode.argument_order)
        last[:] = 0
        self._next = self._decode.outputs[self._decode.result_order[1]]
        self._answered = self._decode

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
        """f32 [B, V] behind the last answer, valid until the next call: what a sampler would choose from."""
        return self._answered.outputs[self._answered.result_order[0]].reshape(self.batch, -1)

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
        for first in range(0, max(lengths), self._chunk):
            size = min(self._chunk, max(lengths) - first)
            chosen = self._feed(prompts, start, first, size)
            done = [row for row, length in enumerate(lengths) if first < length <= first + size]
            result[done] = chosen[done]
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
        step()
        self._answered = step
        return step.outputs[step.result_order[1]].reshape(self.batch)

    def decode(self, tokens: int | Sequence[int] | np.ndarray) -> np.ndarray:
        """Feed one token per sequence; the greedy next ids, int64 [B], valid until the next call."""
        past = self.cache.past
        if past.max() >= self.cache.capacity:
            self.cache.check_room([1] * self.batch)
        self._ids[:, 0] = tokens
        self._past[:] = past
        self._decode()
        self._answered = self._decode
        past += 1
        return self._next.reshape(self.batch)
