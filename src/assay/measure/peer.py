"""llama.cpp on the same weights file with as many threads, as the peer to beat. An extra: ``pip install .[llama]``.

Both engines decode the same number of tokens after the same prompt, in ABBA order in one process. Of llama.cpp only
what gives a token is timed: one call that evaluates a token, and the largest of the logits that it leaves in place.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.backends.protocol import LanguageModel
from assay.measure.ab import PAIRS, Comparison, compare, interleave

PACKAGE = "llama-cpp-python"
BURST = 8  # tokens of one timed run


@dataclass(frozen=True)
class Beside:
    """Ours over llama.cpp's, pair by pair, and the median milliseconds per token of each."""

    comparison: Comparison
    ours_ms: float
    peer_ms: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.comparison), "ours_ms": self.ours_ms, "llama_cpp_ms": self.peer_ms}


def installed() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


class LlamaCpp:
    """A model loaded by llama.cpp; :func:`installed` says whether there is one."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        self._llama = llama_cpp.Llama(
            str(path), n_threads=threads, n_threads_batch=threads, n_ctx=context, logits_all=False, verbose=False
        )
        self._logits_of = llama_cpp.llama_get_logits_ith

    def burst(self, prompt: Sequence[int]) -> float:
        """Seconds for ``BURST`` greedy tokens after ``prompt``, which is not timed."""
        self._llama.reset()
        self._llama.eval(list(prompt))
        token = self._greedy()
        start = time.perf_counter()
        for _ in range(BURST):
            self._llama.eval([token])
            token = self._greedy()
        return time.perf_counter() - start

    def _greedy(self) -> int:
        logits = self._logits_of(self._llama.ctx, -1)
        return int(np.ctypeslib.as_array(logits, (self._llama.n_vocab(),)).argmax())


def beside(peer: LlamaCpp, model: LanguageModel, prompt: Sequence[int]) -> Beside:
    """Both engines' time for ``BURST`` tokens, interleaved; a ratio below 1 is faster than llama.cpp."""

    def ours() -> float:
        model.reset()
        token = model.prefill(prompt)
        start = time.perf_counter()
        for _ in range(BURST):
            token = model.decode(token)
        return time.perf_counter() - start

    samples = interleave(lambda: peer.burst(prompt), ours, PAIRS)
    theirs, own = (float(np.median(column)) * 1e3 / BURST for column in np.asarray(samples).T)
    return Beside(compare(samples), own, theirs)
