"""One compiled model in a process of its own, timed on request: what the A/B protocol interleaves.

Usage: python -m assay.measure.worker MODEL QUANT TARGET THREADS BACKEND [WEIGHTS]

Speaks JSON lines on standard output: first its :class:`Hello`, then the seconds of each phase that a line of standard
input asks for. It runs from any checkout, with the assay and the compiler of that checkout; ``PROTOCOL`` says whether
the two sides understand each other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from assay import backends
from assay.backends.protocol import LanguageModel
from assay.tokens import registry
from assay.tokens.source import resolve

PROTOCOL = 1
PREFILL_TOKENS = 512
DEPTH = 64  # tokens in the cache before the first timed decode
DECODE_TOKENS = 16  # decoded per sample
SEED = 0


@dataclass(frozen=True)
class Hello:
    """What was loaded. ``artifact`` is equal if and only if the same code runs in the token loop."""

    protocol: int
    artifact: str
    weight_bytes: int
    load_s: float


def phases(model: LanguageModel) -> dict[str, Callable[[], float]]:
    """Seconds per token of each phase, on the same random ids every time."""
    ids = np.random.default_rng(SEED).integers(0, model.vocabulary, PREFILL_TOKENS).tolist()
    prompt = ids[: min(PREFILL_TOKENS, model.context)]
    fed = prompt[: min(DEPTH, max(1, model.context - DECODE_TOKENS))]

    def prefill() -> float:
        model.reset()
        start = time.perf_counter()
        model.prefill(prompt)
        return (time.perf_counter() - start) / len(prompt)

    def decode() -> float:
        model.reset()
        token = model.prefill(fed)
        start = time.perf_counter()
        for _ in range(DECODE_TOKENS):
            token = model.decode(token)
        return (time.perf_counter() - start) / DECODE_TOKENS

    return {"prefill": prefill, "decode": decode}


def main(arguments: list[str]) -> None:
    model_name, quant, target, threads, backend, *weights = arguments
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not get between the lines
    began = time.perf_counter()
    spec = registry.model(model_name)
    path = resolve(spec, weights[0] if weights else None)
    compiler = backends.load(backend)
    model = compiler.load_model(str(path), target, quant=quant, threads=int(threads), context=spec.context)
    facts = model.facts()
    loaded = time.perf_counter() - began
    hello = Hello(PROTOCOL, str(facts.get("artifact", "")), int(facts["weight_bytes"]), loaded)
    answers.write(json.dumps(asdict(hello)) + "\n")
    run = phases(model)
    for line in sys.stdin:
        answers.write(json.dumps(run[line.strip()]()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
