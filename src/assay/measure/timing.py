"""The times of one greedy generation, by the terms of docs/measuring.md."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Timing:
    """``ttft_ms`` is the time from the prompt to the first token; ``itl_ms`` the gaps between the tokens after it."""

    prompt_tokens: int
    ttft_ms: float
    itl_ms: tuple[float, ...]

    @classmethod
    def of(cls, prompt_tokens: int, start: float, arrivals: Sequence[float]) -> Timing:
        """From clock readings in seconds: when the prompt was given, and when each token came; at least one."""
        gaps = np.diff(arrivals) * 1e3
        return cls(prompt_tokens, (arrivals[0] - start) * 1e3, tuple(gaps.tolist()))

    @property
    def tpot_ms(self) -> float:
        """(end to end − ttft) / (tokens − 1); NaN for a single token."""
        return float(np.mean(self.itl_ms)) if self.itl_ms else float("nan")

    @property
    def prefill_tok_s(self) -> float:
        return self.prompt_tokens / self.ttft_ms * 1e3

    @property
    def decode_tok_s(self) -> float:
        return 1e3 / self.tpot_ms

    def read_gb_s(self, bytes_per_token: float) -> float:
        """Bytes read per second while decoding, when each token reads ``bytes_per_token``; in GB/s."""
        return bytes_per_token / self.tpot_ms * 1e-6

    def to_dict(self) -> dict[str, Any]:
        """All the numbers, None for one that a single token does not have."""
        numbers = {"ttft_ms": self.ttft_ms, "prefill_tok_s": self.prefill_tok_s}
        if not self.itl_ms:
            return numbers | {"tpot_ms": None, "decode_tok_s": None, "itl_ms": None}
        p50, p95 = np.quantile(self.itl_ms, (0.5, 0.95)).tolist()
        itl = {"p50": p50, "p95": p95, "max": max(self.itl_ms)}
        return numbers | {"tpot_ms": self.tpot_ms, "decode_tok_s": self.decode_tok_s, "itl_ms": itl}


def peak_rss_bytes() -> int:
    """The most memory this process ever held resident, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
