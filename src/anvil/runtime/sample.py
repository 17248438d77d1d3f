"""How the next token is chosen from logits: greedy, or drawn from what temperature and cuts leave of them.

Everything is computed in float64 from the float32 logits, in the order in which ``transformers`` applies its logits
processors, and the random numbers are a function of (seed, step) alone. Logits do not depend on the number of threads
or on what else is in a batch, so neither do the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anvil.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """Choices of a generation; the defaults are greedy. Raises :class:`InputError` for a value out of range.

    ``temperature`` 0 takes the most likely token. ``top_k`` keeps the k most likely (0: all; ties with the last are
    kept), ``top_p`` the fewest that together reach that probability, ``min_p`` those with at least that fraction of
    the largest probability. ``repetition_penalty`` divides positive and multiplies negative logits of all tokens in
    prompt and answer so far.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "temperature": (0.0 <= self.temperature < np.inf, "0 (greedy) or more"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "top_p": (0.0 < self.top_p <= 1.0, "more than 0, at most 1 (all)"),
            "min_p": (0.0 <= self.min_p <= 1.0, "0 (all) to 1"),
            "repetition_penalty": (0.0 < self.repetition_penalty < np.inf, "more than 0; 1 is none"),
            "seed": (0 <= self.seed < 2**64, "0 to 2^64 - 1"),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                raise InputError(f"choosing tokens: {name}={getattr(self, name)}, expected {expected}")

    @property
    def plain(self) -> bool:
        """Whether the choice is simply the largest logit."""
        return self.temperature == 0 and self.repetition_penalty == 1


GREEDY = Sampling()


def choose(logits: np.ndarray, so_far: Sequence[int], sampling: Sampling, step: int) -> int:
    """The id chosen from ``logits`` f32 [V] after the ids ``so_far``; ``step`` counts the new tokens before it."""
    scores = processed(logits, so_far, sampling)
    if sampling.temperature == 0:
        return int(scores.argmax())
    sums = np.cumsum(_softmax(scores))
    draw = np.random.Generator(np.random.Philox(key=sampling.seed, counter=step)).random()
    return int(np.searchsorted(sums, draw * sums[-1], side="right"))


def processed(logits: np.ndarray, so_far: Sequence[int], sampling: Sampling) -> np.ndarray:
    """float64 [V] scores that the choice is made from; -Inf for tokens that were cut."""
    scores = logits.astype(np.float64)
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.asarray(so_far, np.int64))
        repeated = scores[seen]
        penalty = sampling.repetition_penalty
        scores[seen] = np.where(repeated < 0, repeated * penalty, repeated / penalty)
    if sampling.temperature == 0:
        return scores
    scores /= sampling.temperature
    if 0 < sampling.top_k < len(scores):
        scores[scores < np.partition(scores, -sampling.top_k)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        _keep_top_p(scores, sampling.top_p)
    if sampling.min_p > 0:
        probabilities = _softmax(scores)
        scores[probabilities < sampling.min_p * probabilities.max()] = -np.inf
    return scores


def _keep_top_p(scores: np.ndarray, top_p: float) -> None:
    """Cut the least likely tokens whose probabilities together are at most 1 - top_p; never the most likely one."""
    order = np.argsort(scores, kind="stable")
    gathered = np.cumsum(_softmax(scores[order]))
    cut = gathered <= 1 - top_p
    cut[-1] = False
    scores[order[cut]] = -np.inf


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
