"""Nibbles of i32 lanes as numbers where instructions move bytes: half the work of a shift and a mask per number.

The eight nibbles of a word are parted once into two words of four bytes; a byte then goes to the top of its lane, where
its sign is the lane's, in one operation.
"""

from __future__ import annotations

from collections.abc import Callable

from anvil.kernels.bits import byte_on_top, upper_nibbles
from anvil.kernels.blocks import At, Swift, small_float
from anvil.kernels.dsl import Val


def signed_nibbles(words: Callable[[At, Val], Val]) -> Swift:
    """Two's complement nibbles of the words that ``words(at, step)`` loads, times 2^28; parameters are the scale."""
    return Swift(
        codes=lambda at, step: (at.target, upper_nibbles(words(at, step))),
        value=lambda codes, k, scale: small_float(byte_on_top(codes[1][k % 2], k // 2, codes[0])),
        scale=lambda scale: scale * 2.0**-28,
    )
