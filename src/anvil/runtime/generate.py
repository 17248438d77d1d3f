"""The generation loop: tokens out of a decoder, with the time each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from anvil.errors import InputError
from anvil.runtime.decoder import Decoder


@dataclass
class Generation:
    """What was generated for one prompt. Times in milliseconds; ``itl_ms`` are the gaps between tokens."""

    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    ttft_ms: float = 0.0
    itl_ms: list[float] = field(default_factory=list)
    stopped: bool = False  # by a stop id, which is the last of ``ids``

    @property
    def tpot_ms(self) -> float:
        """Mean time per output token after the first; 0 when there is only one."""
        return sum(self.itl_ms) / len(self.itl_ms) if self.itl_ms else 0.0


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    stop_ids: Collection[int] = (),
    on_token: Callable[[int], None] | None = None,
) -> Generation:
    """Greedy continuation of ``prompt`` in a fresh cache, batch 1.

    Ends after ``max_new_tokens``, after a stop id, or never before one token. ``on_token`` gets each id as it comes.
    Raises :class:`InputError` when prompt and new tokens do not fit the cache.
    """
    if max_new_tokens < 1:
        raise InputError(f"generating: max_new_tokens={max_new_tokens}, expected at least 1")
    decoder.reset()
    decoder.cache.check_room([len(prompt) + max_new_tokens - 1])
    result = Generation(prompt_tokens=len(prompt))
    token = np.zeros(1, np.int64)
    before = time.perf_counter()
    token[:] = decoder.prefill([prompt])
    result.ttft_ms = (time.perf_counter() - before) * 1e3
    while True:
        chosen = int(token[0])
        result.ids.append(chosen)
        if on_token is not None:
            on_token(chosen)
        result.stopped = chosen in stop_ids
        if result.stopped or len(result.ids) == max_new_tokens:
            return result
        before = time.perf_counter()
        token[:] = decoder.decode(token)
        result.itl_ms.append((time.perf_counter() - before) * 1e3)
