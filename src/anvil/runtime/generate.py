"""The generation loop: tokens out of a decoder, with the time each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from anvil.errors import InputError
from anvil.runtime.decoder import Decoder
from anvil.runtime.sample import GREEDY, Sampling, choose

OnToken = Callable[[int, int], None]


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
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | None = None,
    *,
    sampling: Sampling = GREEDY,
    stop_ids: Collection[int] = (),
    on_token: OnToken | None = None,
    window: int = 0,
) -> list[Generation]:
    """Continuations of ``prompts``, of any lengths, in a fresh cache; each is what it would be alone.

    An answer ends after ``max_new_tokens`` (by default when the cache is full), or after a stop id, never before one
    token. ``on_token(row, id)`` gets each id as it comes. With a ``window`` a full cache does not end it: the last
    ``window`` ids are fed again as a prompt of their own, and all before them are forgotten.

    Raises :class:`InputError` when prompt and new tokens do not fit the cache, and for a window that is not below its
    capacity or stands with several prompts or without ``max_new_tokens``.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(f"generating: max_new_tokens={max_new_tokens}, expected at least 1")
    if window:
        _check_window(window, decoder.cache.capacity, len(prompts), max_new_tokens)
    decoder.reset()
    answer = 1 if window else max_new_tokens or 1
    decoder.cache.check_room([len(prompt) + answer - 1 for prompt in prompts])
    most = [max_new_tokens or decoder.cache.capacity - len(prompt) + 1 for prompt in prompts]
    results = [Generation(prompt_tokens=len(prompt)) for prompt in prompts]
    active = np.ones(len(prompts), bool)
    before = time.perf_counter()
    tokens = _chosen(decoder, decoder.prefill(prompts), prompts, results, sampling, active)
    first_ms = (time.perf_counter() - before) * 1e3
    for result in results:
        result.ttft_ms = first_ms
    while True:
        for row in np.flatnonzero(active).tolist():
            result, token = results[row], int(tokens[row])
            result.ids.append(token)
            if on_token is not None:
                on_token(row, token)
            result.stopped = token in stop_ids
            active[row] = not result.stopped and len(result.ids) < most[row]
        if not active.any():
            return results
        before = time.perf_counter()
        if window and decoder.cache.past[0] == decoder.cache.capacity:
            decoder.reset()
            greedy = decoder.prefill([[*prompts[0], *results[0].ids][-window:]])
        else:
            greedy = decoder.decode(tokens, active)
        tokens = _chosen(decoder, greedy, prompts, results, sampling, active)
        gap_ms = (time.perf_counter() - before) * 1e3
        for row in np.flatnonzero(active).tolist():
            results[row].itl_ms.append(gap_ms)


def _check_window(window: int, capacity: int, prompts: int, max_new_tokens: int | None) -> None:
    where = f"generating with window={window}"
    if not 0 < window < capacity:
        raise InputError(f"{where}: expected 1 to {capacity - 1} ids, fewer than the cache holds")
    if prompts > 1:
        raise InputError(f"{where}: got {prompts} prompts, expected one; ask them one after the other")
    if max_new_tokens is None:
        raise InputError(f"{where}: the answer would never end; give max_new_tokens")


def _chosen(
    decoder: Decoder,
    greedy: np.ndarray,
    prompts: Sequence[Sequence[int]],
    results: Sequence[Generation],
    sampling: Sampling,
    active: np.ndarray,
) -> np.ndarray:
    """The next id of every sequence, int64 [B]; ``greedy`` has what the compiled model chose."""
    tokens = greedy.copy()
    if not sampling.plain:
        for row in np.flatnonzero(active).tolist():
            ids = results[row].ids
            tokens[row] = choose(decoder.logits[row], [*prompts[row], *ids], sampling, len(ids))
    return tokens
