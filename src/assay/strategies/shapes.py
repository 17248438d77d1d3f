"""Sizes as data: every dimension of an op is free (drawn), derived from others, or static (one compile per choice)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from hypothesis import strategies as st

#: Sizes to straddle where the compiler names none: the lanes of 128-, 256- and 512-bit vectors of 32-bit elements.
DEFAULT_EDGES = (4, 8, 16)

Sizes = Callable[[tuple[int, ...]], tuple[int, ...]]
Dims = Mapping[str, int]


def span(first: int, last: int) -> Sizes:
    """Every size from first to last."""
    return lambda edges: tuple(range(first, last + 1))


def choice(*sizes: int) -> Sizes:
    """These sizes."""
    return lambda edges: sizes


def around_tiles(*also: int, even: bool = False) -> Sizes:
    """n in {0, 1, b−1, b, b+1, 2b−1, 2b+1} for each edge b of the schedule; ``even`` doubles half of it."""

    def sizes(edges: tuple[int, ...]) -> tuple[int, ...]:
        if even:
            edges = tuple(max(b // 2, 1) for b in edges)
        found = {0, 1, *also}
        for b in edges:
            found |= {b - 1, b, b + 1, 2 * b - 1, 2 * b + 1}
        return tuple(sorted(n * 2 if even else n for n in found))

    return sizes


@dataclass(frozen=True)
class Shapes:
    """The dimensions of an op.

    Args:
        free: sizes by name, drawn independently.
        derived: sizes computed from the others, in order.
        static: joint choices of sizes fixed at compile time (head counts, hidden sizes of a layer).
        size: elements or operations an example costs, to keep drawn examples small.
    """

    free: Mapping[str, Sizes]
    derived: Mapping[str, Callable[[Dims], int]] = field(default_factory=dict)
    static: tuple[Dims, ...] = ()
    size: Callable[[Dims], int] = lambda dims: prod(dims.values())

    def complete(self, dims: Dims) -> dict[str, int]:
        """``dims`` with the derived sizes added."""
        full = dict(dims)
        for name, rule in self.derived.items():
            full[name] = rule(full)
        return full

    def compile_dims(self) -> dict[str, int]:
        """Free sizes of a compile-time example: at least 2, and different, so that none look equal by chance."""
        chosen: dict[str, int] = {}
        for name, sizes in self.candidates({}).items():
            fresh = [size for size in sizes if size >= 2 and size not in chosen.values()]
            chosen[name] = min(fresh, default=max(sizes))
        return chosen

    def named(self, dims: Dims) -> dict[str, int]:
        """The sizes that identify an example: static and free, without the derived."""
        return {name: size for name, size in dims.items() if name not in self.derived}

    def candidates(self, edges: Mapping[str, int | tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Sizes to draw from, per free dimension, for a kernel whose schedule changes shape at ``edges``."""
        return {name: sizes(edges_of(name, edges)) for name, sizes in self.free.items()}

    def strategy(self, edges: Mapping[str, int | tuple[int, ...]], limit: int) -> st.SearchStrategy[dict[str, int]]:
        """Complete dims whose ``size`` is at most ``limit``: the largest free size is halved until it is."""
        candidates = self.candidates(edges)
        parts = [st.integers(0, len(sizes) - 1) for sizes in candidates.values()]
        static = self.static or ({},)

        def build(drawn: tuple[int, ...]) -> dict[str, int]:
            indices = zip(candidates.items(), drawn[1:], strict=True)
            dims = {**static[drawn[0]], **{name: sizes[index] for (name, sizes), index in indices}}
            return self.shrink_to(dims, limit)

        return st.tuples(st.integers(0, len(static) - 1), *parts).map(build)

    def shrink_to(self, dims: dict[str, int], limit: int) -> dict[str, int]:
        """Halve the largest free size until the complete dims fit."""
        dims = self.complete(dims)
        while self.size(dims) > limit:
            largest = max(self.free, key=lambda name: dims[name])
            dims = self.complete({**self.named(dims), largest: dims[largest] // 2})
        return dims


def is_suffix(text: str) -> bool:
    """Whether text is the sizes part of an example's id: ``B2S7D33``."""
    return re.fullmatch(r"([A-Za-z]+\d+)+", text) is not None


def edges_of(name: str, edges: Mapping[str, int | tuple[int, ...]]) -> tuple[int, ...]:
    """The schedule's edges of one dimension; the default ones where the compiler says nothing."""
    known = edges.get(name)
    return DEFAULT_EDGES if known is None else known if isinstance(known, tuple) else (known,)
