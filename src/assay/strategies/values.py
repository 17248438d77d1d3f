"""Named kinds of values. Each fills an array from a seeded generator; the last axis is the one reductions run over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Generator = np.random.Generator
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Values:
    """One kind. ``everywhere``: applied to every data operand, else to one of them; ``zero_mean``: see bounds."""

    name: str
    fill: Callable[[Generator, Shape], np.ndarray]
    everywhere: bool = True
    zero_mean: bool = False


def normal(rng: Generator, shape: Shape) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def positive(rng: Generator, shape: Shape) -> np.ndarray:
    return np.abs(normal(rng, shape)) + np.float32(0.5)


def cancellation(rng: Generator, shape: Shape) -> np.ndarray:
    """Large terms of alternating sign over small ones: their sum is small, the sum of their sizes is not."""
    sign = np.where(np.arange(shape[-1] if shape else 1) % 2, np.float32(-1000), np.float32(1000))
    return normal(rng, shape) + sign


def spike(rng: Generator, shape: Shape) -> np.ndarray:
    return with_some(rng, normal(rng, shape) * np.float32(0.01), (1e3,))


def wide(rng: Generator, shape: Shape) -> np.ndarray:
    return np.ldexp(normal(rng, shape), rng.integers(-12, 12, shape, np.int32))


def equal(rng: Generator, shape: Shape) -> np.ndarray:
    return np.full(shape, normal(rng, ()), np.float32)


def one_hot(rng: Generator, shape: Shape) -> np.ndarray:
    x = np.zeros(shape, np.float32)
    if x.size:
        np.put_along_axis(x, rng.integers(0, shape[-1], (*shape[:-1], 1)), 1.0, axis=-1)
    return x


def zeros(rng: Generator, shape: Shape) -> np.ndarray:
    """+0 and −0."""
    return np.copysign(np.float32(0), normal(rng, shape))


def denormal(rng: Generator, shape: Shape) -> np.ndarray:
    return normal(rng, shape) * np.float32(1e-40)


def tied(rng: Generator, shape: Shape) -> np.ndarray:
    """Small integers: many equal maxima."""
    return rng.integers(-2, 3, shape).astype(np.float32)


def infinite(rng: Generator, shape: Shape) -> np.ndarray:
    return with_some(rng, normal(rng, shape), (np.inf, -np.inf))


def nan(rng: Generator, shape: Shape) -> np.ndarray:
    return with_some(rng, normal(rng, shape), (np.nan,))


def negative_infinite_rows(rng: Generator, shape: Shape) -> np.ndarray:
    x = normal(rng, shape)
    x[rng.random(shape[:-1]) < 0.5] = -np.inf
    return x


def extreme(rng: Generator, shape: Shape) -> np.ndarray:
    """The largest finite numbers, both signs, beside ordinary ones."""
    return with_some(rng, normal(rng, shape), (3.4028235e38, -3.4028235e38))


def with_some(rng: Generator, x: np.ndarray, values: tuple[float, ...]) -> np.ndarray:
    """``x`` with one element in about sixteen, and at least one, replaced."""
    if x.size:
        count = 1 + rng.integers(0, max(x.size // 16, 1))
        x.reshape(-1)[rng.integers(0, x.size, count)] = rng.choice(np.array(values, np.float32), count)
    return x


#: Small integers for the exact mode: the spec makes its operands itself, so that the answer needs no rounding.
INTEGERS = "integers"
#: A known input of the spec; the example's seed is its index.
KNOWN = "known"

_ALL = (
    Values("normal", normal, zero_mean=True),
    Values("positive", positive),
    Values("cancellation", cancellation),
    Values("spike", spike, everywhere=False),
    Values("wide", wide),
    Values("equal", equal),
    Values("one_hot", one_hot),
    Values("tied", tied),
    Values("zeros", zeros),
    Values("denormal", denormal),
    Values("infinite", infinite, everywhere=False),
    Values("nan", nan, everywhere=False),
    Values("negative_infinite_rows", negative_infinite_rows, everywhere=False),
    Values("extreme", extreme, everywhere=False),
    Values(INTEGERS, tied),
    Values(KNOWN, normal),
)
VALUES = {values.name: values for values in _ALL}
NAMES = tuple(VALUES)
#: Kinds for which sums stay small against the sum of sizes, see ``bounds.ZERO_MEAN_FACTOR``.
ZERO_MEAN = frozenset(values.name for values in _ALL if values.zero_mean)
