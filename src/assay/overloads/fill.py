"""Values for every element type, seeded. A kind is a function ``(rng, shape, dtype) -> tensor``."""

from __future__ import annotations

from math import inf, nan, prod

import numpy as np
import torch

from assay.overloads.spec import Fill

Rng = np.random.Generator
Shape = tuple[int, ...]

#: Values every element type has its own neighbourhood of.
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, inf, -inf, nan)


def mixed(rng: Rng, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Elements of every sort side by side: ordinary, small whole numbers, wide, special, the type's own extremes."""
    count = prod(shape)
    if dtype == torch.bool:
        return _bools(rng, shape, 0.5)
    if not dtype.is_floating_point:
        return _choose(rng, shape, [_whole(rng, count, dtype, 4), _extreme_integers(rng, count, dtype)])
    ordinary = torch.from_numpy(rng.standard_normal(count) * 3)
    wide = torch.from_numpy(np.ldexp(rng.standard_normal(count), rng.integers(*_exponents(dtype), count)))
    info = torch.finfo(dtype)
    edges = torch.tensor([*SPECIAL, info.max, -info.max, info.tiny, -info.tiny, info.tiny * info.eps, info.eps])
    special = torch.from_numpy(rng.choice(edges.double().numpy(), count))
    kinds = [ordinary, ordinary, torch.from_numpy(rng.integers(-4, 5, count)).double(), wide, special]
    return _choose(rng, shape, [kind.to(dtype) for kind in kinds])


def ordinary(rng: Rng, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Finite and of moderate size; integers small, so that sums of them need no wrapping but may."""
    if dtype == torch.bool:
        return _bools(rng, shape, 0.5)
    if not dtype.is_floating_point:
        return _whole(rng, prod(shape), dtype, 50).reshape(shape)
    return torch.from_numpy(np.asarray(rng.standard_normal(shape) * 2)).to(dtype)


def whole(rng: Rng, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers: sums are exact in every type, and there are ties."""
    if dtype == torch.bool:
        return _bools(rng, shape, 0.8)
    return _whole(rng, prod(shape), dtype, 3).reshape(shape)


def positive(rng: Rng, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Above zero: nothing cancels."""
    x = ordinary(rng, shape, dtype)
    return x if dtype == torch.bool else (x.abs() + 0.5 if dtype.is_floating_point else x.abs().clamp(min=1)).to(dtype)


def special(rng: Rng, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Ordinary values, and one in about sixteen special; integers over their whole range."""
    if not dtype.is_floating_point:
        return mixed(rng, shape, dtype)
    x = ordinary(rng, shape, dtype).reshape(-1)
    chosen = torch.from_numpy(rng.random(x.numel()) < 1 / 16)
    x[chosen] = torch.from_numpy(rng.choice(np.array(SPECIAL), int(chosen.sum()))).to(dtype)
    return x.reshape(shape)


KINDS: dict[str, Fill] = {kind.__name__: kind for kind in (mixed, ordinary, whole, positive, special)}


def between(low: int, high: int) -> Fill:
    """Whole numbers from ``low`` up to, not including, ``high``: indices, shifts."""
    return lambda rng, shape, dtype: torch.from_numpy(np.asarray(rng.integers(low, high, shape))).to(dtype)


def nonzero(kind: Fill = mixed) -> Fill:
    """What ``kind`` makes with 1 for every integer 0: divisors."""

    def fill(rng: Rng, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        x = kind(rng, shape, dtype)
        return x if dtype.is_floating_point else torch.where(x == 0, torch.ones_like(x), x)

    return fill


def _bools(rng: Rng, shape: Shape, share: float) -> torch.Tensor:
    return torch.from_numpy(np.asarray(rng.random(shape) < share))


def _choose(rng: Rng, shape: Shape, kinds: list[torch.Tensor]) -> torch.Tensor:
    """Each element from one of several tensors."""
    which = torch.from_numpy(rng.integers(0, len(kinds), prod(shape)))
    return torch.stack(kinds).gather(0, which[None])[0].reshape(shape)


def _exponents(dtype: torch.dtype) -> tuple[int, int]:
    """Powers of two from half of the smallest to half of the largest number."""
    info = torch.finfo(dtype)
    return int(np.log2(info.tiny)) // 2, int(np.log2(info.max)) // 2 + 1


def _whole(rng: Rng, count: int, dtype: torch.dtype, limit: int) -> torch.Tensor:
    low = 0 if dtype == torch.uint8 else -limit
    return torch.from_numpy(rng.integers(low, limit + 1, count)).to(dtype)


def _extreme_integers(rng: Rng, count: int, dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    anywhere = rng.integers(info.min, info.max, count, dtype=np.int64, endpoint=True)
    edges = rng.choice(np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1], np.int64), count)
    return torch.from_numpy(np.where(rng.random(count) < 0.3, edges, anywhere)).to(dtype)
