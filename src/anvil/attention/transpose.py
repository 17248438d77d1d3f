"""Turning 16 rows of 4 components into 4 vectors of 16, in registers."""

from __future__ import annotations

from anvil.kernels.dsl import LANES, Val, shuffle

QUAD = 4  # components transposed at a time


def transposed(rows: list[Val]) -> list[Val]:
    """16 vectors of 4 -> 4 vectors of 16: quads side by side first, then 4 x 4 transposes inside groups of 4 lanes."""
    joined = []
    for first in range(QUAD):
        quads = rows[first::QUAD]
        low, high = (shuffle(quads[i], quads[i + 1], range(2 * QUAD)) for i in (0, 2))
        joined.append(shuffle(low, high, range(LANES)))
    groups = range(0, LANES, QUAD)
    unpack_low = [lane for g in groups for lane in (g, g + LANES, g + 1, g + 1 + LANES)]
    unpack_high = [lane for g in groups for lane in (g + 2, g + 2 + LANES, g + 3, g + 3 + LANES)]
    low_pairs = [lane for g in groups for lane in (g, g + 1, g + LANES, g + 1 + LANES)]
    high_pairs = [lane for g in groups for lane in (g + 2, g + 3, g + 2 + LANES, g + 3 + LANES)]
    a, b, c, d = joined
    low_ab, low_cd = shuffle(a, b, unpack_low), shuffle(c, d, unpack_low)
    high_ab, high_cd = shuffle(a, b, unpack_high), shuffle(c, d, unpack_high)
    pairs = ((low_ab, low_cd, low_pairs), (low_ab, low_cd, high_pairs))
    pairs += ((high_ab, high_cd, low_pairs), (high_ab, high_cd, high_pairs))
    return [shuffle(left, right, lanes) for left, right, lanes in pairs]
