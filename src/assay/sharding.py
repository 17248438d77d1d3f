"""Parts of a test run that add up to exactly the whole: ``--shard i/n``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def share(units: Sequence[str], part: int, parts: int) -> list[bool]:
    """Which of some tests are in the ``part``-th of ``parts`` shards, given the unit each belongs to.

    A unit is never divided. Units go, the largest first, each to the shard that has the fewest tests so far: shards are
    about equally large, and every process that collects the same tests divides them in the same way.
    """
    sizes = [0] * parts
    shard: dict[str, int] = {}
    for unit, size in sorted(Counter(units).items(), key=lambda item: (-item[1], item[0])):
        shard[unit] = min(range(parts), key=lambda i: sizes[i])
        sizes[shard[unit]] += size
    return [shard[unit] == part - 1 for unit in units]
