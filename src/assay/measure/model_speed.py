"""The speed of a compiled model, measured alone, beside the ceiling of the machine and PyTorch eager."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from assay.backends.protocol import LanguageModel
from assay.measure.ab import interleave
from assay.record.rows import Metric
from assay.tokens.reference import Reference
from assay.tokens.session import Generation, Speed

PREFILL_TOKENS = 512
PREFILL_PAIRS = 3


@dataclass(frozen=True)
class Prefill:
    """Prefill of ``tokens`` tokens, seconds per run, compiled and eager in ABBA order in the same session."""

    tokens: int
    compiled_s: tuple[float, ...]
    eager_s: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """Median over the pairs of eager's time over ours."""
        return float(np.median(np.asarray(self.eager_s) / np.asarray(self.compiled_s)))


def compare_prefill(
    model: LanguageModel, eager: Reference, threads: int, tokens: int = PREFILL_TOKENS, pairs: int = PREFILL_PAIRS
) -> Prefill:
    """Time both on the same random ids; eager computes only the last row's logits, as the compiled model does."""
    tokens = min(tokens, model.context)
    ids = np.random.default_rng(0).integers(0, model.vocabulary, tokens).tolist()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        samples = interleave(_timed(lambda: eager.last_logits(ids)), _timed(lambda: _fresh(model, ids)), pairs)
    finally:
        torch.set_num_threads(before)
    return Prefill(tokens, tuple(head for _, head in samples), tuple(base for base, _ in samples))


def metrics(generation: Generation, speed: Speed, prefill: Prefill | None, peak_rss: int) -> list[Metric]:
    """All numbers of a measurement as record metrics, in the terms of docs/measuring.md."""
    timing = generation.timing
    found = [
        Metric("ttft_ms", timing.ttft_ms, "ms", "lower", "timed"),
        Metric("tpot_ms", timing.tpot_ms, "ms", "lower", "timed", timing.itl_ms),
        Metric("prefill_tok_s", timing.prefill_tok_s, "tokens/s", "higher", "timed"),
        Metric("decode_tok_s", timing.decode_tok_s, "tokens/s", "higher", "timed"),
        Metric("achieved_gb_s", speed.achieved_gb_s, "GB/s", "higher", "timed"),
        Metric("ceiling_gb_s", speed.ceiling.read_gb_s, "GB/s", "none", "timed"),
        Metric("ceiling_gflop_s", speed.ceiling.fma_gflop_s, "GFLOP/s", "none", "timed"),
        Metric("ceiling_share", speed.share, "", "higher", "timed"),
        Metric("weight_bytes", speed.weight_bytes, "bytes"),
        Metric("peak_rss_bytes", peak_rss, "bytes"),
    ]
    if prefill:
        ours = float(np.median(prefill.compiled_s))
        found += [
            Metric(f"prefill{prefill.tokens}_tok_s", prefill.tokens / ours, "tokens/s", "higher", "timed"),
            Metric(f"prefill{prefill.tokens}_speedup", prefill.speedup, "× eager", "higher", "timed"),
        ]
    return found


def _fresh(model: LanguageModel, ids: list[int]) -> None:
    model.reset()
    model.prefill(ids)


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run
