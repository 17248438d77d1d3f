"""How fast each quantisation mode decodes: bytes of weights per token against what the machine reads.

Decoding reads every weight once per token, so a mode of half the bytes should take half the time; the share of the
ceiling says how far it is from that. Ceiling and model are measured turn by turn, because the machine moves.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.backends.protocol import LanguageModel
from assay.errors import UsageError
from assay.measure.ab import PAIRS, Comparison, compare, interleave
from assay.measure.ceiling import Probes
from assay.measure.timing import Timing
from assay.tokens.session import Speed, speed_of

ROUNDS = 3
BURST = 8  # tokens of one timed run beside another engine


@dataclass(frozen=True)
class ModeSpeed:
    """Decoding in one mode: the median time per token, in the best of the rounds, and what it read per second."""

    quant: str
    tpot_ms: float
    speed: Speed

    @property
    def share(self) -> float:
        """Of the read bandwidth. Where a part of the weights stays in the caches (``speed.share`` is None) it says how
        fast decoding is, not how near to a limit."""
        return (self.speed.achieved_gb_s or 0.0) / self.speed.ceiling.read_gb_s

    def to_dict(self) -> dict[str, Any]:
        return {
            "quant": self.quant,
            "tpot_ms": self.tpot_ms,
            "tok_s": 1e3 / self.tpot_ms,
            "share": self.share,
            **self.speed.to_dict(),
        }


def decode_speed(model: LanguageModel, quant: str, prompt: Sequence[int], tokens: int, threads: int) -> ModeSpeed:
    """``tokens`` tokens after ``prompt``, ``ROUNDS`` times, with the ceiling measured before, between and after."""
    weight_bytes = int(model.facts()["weight_bytes"])
    with Probes(threads, weight_bytes) as probes:
        best: Timing | None = None
        for _ in range(ROUNDS):
            probes.measure(1)
            timing = decode(model, prompt, tokens)
            best = timing if best is None or timing.tpot_ms < best.tpot_ms else best
        top = probes.measure(1).ceiling()
    assert best is not None
    return ModeSpeed(quant, best.tpot_ms, speed_of(best, weight_bytes, top))


def decode(model: LanguageModel, prompt: Sequence[int], tokens: int) -> Timing:
    """When each of ``tokens`` greedy tokens came; none stops the run."""
    model.reset()
    start = time.perf_counter()
    token = model.prefill(prompt)
    arrivals = [time.perf_counter()]
    while len(arrivals) < tokens:
        token = model.decode(token)
        arrivals.append(time.perf_counter())
    return Timing.of(len(prompt), start, arrivals)


class LlamaCpp:
    """llama.cpp on the same file, as the peer to beat. Needs ``pip install llama-cpp-python``."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        if not self.available():
            raise UsageError("timing llama.cpp: the package is not installed; run: pip install llama-cpp-python")
        from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

        self._llama = Llama(
            str(path), n_threads=threads, n_threads_batch=threads, n_ctx=context, logits_all=False, verbose=False
        )

    @staticmethod
    def available() -> bool:
        return importlib.util.find_spec("llama_cpp") is not None

    def burst(self, prompt: Sequence[int]) -> float:
        """Seconds for ``BURST`` tokens after ``prompt``, which is not timed."""
        self._llama.reset()
        self._llama.eval(list(prompt))
        start = time.perf_counter()
        for _ in range(BURST):
            self._llama.eval([self._llama.sample(temp=0.0, top_k=1)])
        return time.perf_counter() - start


def beside(peer: LlamaCpp, model: LanguageModel, prompt: Sequence[int]) -> Comparison:
    """Our time over llama.cpp's for ``BURST`` tokens, interleaved in one session; below 1 is faster."""

    def ours() -> float:
        model.reset()
        token = model.prefill(prompt)
        start = time.perf_counter()
        for _ in range(BURST):
            token = model.decode(token)
        return time.perf_counter() - start

    return compare(interleave(lambda: peer.burst(prompt), ours, PAIRS))


def comparison_data(found: Comparison) -> dict[str, float]:
    """For JSON."""
    return asdict(found)
