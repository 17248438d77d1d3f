"""The online softmax that blocked variants share, so that they agree to the bit however they tile their queries.

Keys are taken in blocks of ``KEYS`` counted from key 0. For every query, in this order:
score = :func:`finish` of a fused chain over d; m' = max(m, scores); weight = e^(score - m'); factor = e^(m - m');
l' = l factor + sum of weights (four partial sums over key mod 4, joined by a tree); o' = o factor, then one fused
multiply-add per visible key in order. At the end y = o / l.
A block without visible keys changes nothing; an invisible key's value is never multiplied, so it may be NaN.
"""

from __future__ import annotations

from math import inf

from anvil.attention.base import Visibility
from anvil.kernels.dsl import Val, const, ne, select, splat
from anvil.kernels.mathlib.exponential import tanh

KEYS = 64
PARTIAL_SUMS = 4


def join(partial: list[Val]) -> Val:
    """The sum of the four partial sums."""
    return (partial[0] + partial[2]) + (partial[1] + partial[3])


def finish(
    rule: Visibility, product: Val, scale: Val, softcap: Val | None, bias: Val | None, visible: Val | None
) -> Val:
    """From q k to what softmax sees: times ``scale``, capped, plus the mask's ``bias``, -Inf where it is not visible.

    ``product`` is a scalar or a vector, ``scale`` and ``softcap`` are scalars, the others are shaped like ``product``.
    A bias of -Inf hides its key even where the score is NaN.
    """

    def spread(value: Val) -> Val:
        return value if product.lanes is None else splat(value, product.lanes)

    score = product * spread(scale)
    if softcap is not None:
        cap = spread(softcap)
        score = cap * tanh(score / cap)
    if bias is not None:
        score = score + bias
        unmasked = ne(bias, -inf)
        visible = unmasked if visible is None else visible & unmasked
    return score if visible is None else select(visible, score, const(-inf, score.type))
