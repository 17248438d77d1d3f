"""The online softmax that blocked variants share, so that they agree to the bit however they tile their queries.

Keys are taken in blocks of ``KEYS`` counted from key 0. For every query, in this order:
score = (fused chain over d) scale, -Inf where the key is not visible; m' = max(m, scores); weight = e^(score - m');
factor = e^(m - m'); l' = l factor + sum of weights (four partial sums over key mod 4, joined by a tree);
o' = o factor, then one fused multiply-add per visible key in order. At the end y = o / l.
A block without visible keys changes nothing; an invisible key's value is never multiplied, so it may be NaN.
"""

from __future__ import annotations

from anvil.kernels.dsl import Val

KEYS = 64
PARTIAL_SUMS = 4


def join(partial: list[Val]) -> Val:
    """The sum of the four partial sums."""
    return (partial[0] + partial[2]) + (partial[1] + partial[3])
