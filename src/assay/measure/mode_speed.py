"""How fast each quantisation mode decodes: bytes of weights per token against what the machine reads.

Decoding reads every weight once per token, so a mode of half the bytes should take half the time; the share of the
ceiling says how far it is from that. Ceiling and model are measured turn by turn, because the machine moves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.backends.protocol import LanguageModel
from assay.measure.ceiling import Probes
from assay.measure.timing import Timing
from assay.tokens.session import Speed, speed_of

ROUNDS = 3


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
