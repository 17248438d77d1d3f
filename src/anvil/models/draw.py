"""Numbers from a seed, the same on every machine: a counter-based generator and exact integer arithmetic.

Number ``i`` of a stream is the centred sum of the four 16-bit parts of word ``i`` of Philox4x64-10, whose key is the
first 16 bytes of SHA-256 of the stream's name, times one float32 factor. The sum is exact and the product is rounded
once, so no library function whose rounding differs between machines takes part. About normal: the deviation of the
sum is 2^16/√3.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BLOCK = 4  # words that the generator makes at a time
_CHUNK = 1 << 16  # numbers made at a time: their words stay in a core's cache
_HALVES = np.uint64(0x0000FFFF0000FFFF)
_FEW = 32  # chunks that are not worth threads of their own: whoever asks for so few has threads already
_LOW = np.uint64(0xFFFFFFFF)


def draw(stream: str, first: int, last: int, spread: float, centre: float = 0.0) -> np.ndarray:
    """Numbers ``first`` to ``last`` of a stream, float32: ``centre`` plus ``spread`` times about a standard normal."""
    key = np.frombuffer(hashlib.sha256(stream.encode()).digest()[:16], dtype="<u8")
    factor = np.float32(spread * 3**0.5 / 65536)
    out = np.empty(last - first, np.float32)
    starts = range(first, last, _CHUNK)

    def fill(start: int) -> None:
        part = out[start - first : min(start + _CHUNK, last) - first]
        _fill(part, key, start, factor, np.float32(centre))

    if len(starts) < _FEW:
        for start in starts:
            fill(start)
        return out
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, starts))
    return out


def _fill(out: np.ndarray, key: np.ndarray, start: int, factor: np.float32, centre: np.float32) -> None:
    skip = start % _BLOCK
    words = np.random.Philox(key=key, counter=start // _BLOCK).random_raw(skip + len(out))[skip:]
    sums = words & _HALVES
    np.right_shift(words, np.uint64(16), out=words)
    np.bitwise_and(words, _HALVES, out=words)
    np.add(sums, words, out=sums)
    np.right_shift(sums, np.uint64(32), out=words)
    np.bitwise_and(sums, _LOW, out=sums)
    np.add(sums, words, out=sums)
    whole = sums.view(np.int64)
    np.subtract(whole, 2 * 65535, out=whole)
    np.multiply(whole.astype(np.float32), factor, out=out)
    if centre:
        np.add(out, centre, out=out)
