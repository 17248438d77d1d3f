"""From the last hidden state to a token: the product with the vocabulary, then its largest, its K largest, or a draw.

What comes out are indices. Where two logits, or a draw and the edge of a token's share, are closer than rounding can
move them, either index is right and the element has no bound; everywhere else the index must be equal.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from assay import reference
from assay.analysis import Analysis, Bounded
from assay.bounds import Setting
from assay.formats import F32, I64
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Operand, OpSpec, load
from assay.strategies.shapes import Dims, Shapes, around_tiles

layers = load(Path(__file__).with_name("layers.py"))
TOP, TEMPERATURE = 8, 0.7
#: Multipliers of splitmix64 (Steele, Lea, Flood 2014) as signed numbers; a product wraps around.
GOLDEN, MIX, LAST = -7046029254386353131, -4658895280553007687, -7723592293110705685
SIZES = ({"E": 32, "V": 259}, {"E": 21, "V": 100})
Draw = tuple[np.ndarray, np.ndarray]


class Largest(torch.nn.Module):
    def forward(self, x, w):
        return torch.argmax(F.linear(x, w), dim=-1)


class Kept(torch.nn.Module):
    def forward(self, x, w):
        return torch.topk(F.linear(x, w), TOP, dim=-1)[1]


class Drawn(torch.nn.Module):
    """One of the TOP most likely tokens, by temperature: the first whose share reaches a number from (seed, step)."""

    def forward(self, x, w, seed, step):
        values, ids = torch.topk(F.linear(x, w), TOP, dim=-1)
        shares = torch.cumsum(torch.softmax(values / TEMPERATURE, dim=-1), dim=-1)
        draw = uniform(seed, step).to(torch.float32) * 2.0**-24 * shares[:, -1]
        place = (shares <= draw.unsqueeze(-1)).sum(dim=-1, keepdim=True)
        return ids.gather(1, place.clamp(max=TOP - 1)).squeeze(-1)


def uniform(seed, step):
    """24 random bits of (seed, step) in an int64: the same for tensors and arrays."""
    z = seed + step * GOLDEN
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * MIX
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * LAST
    return (z ^ (z >> 31 & 0x1FFFFFFFF)) >> 40 & 0xFFFFFF


def ranked(logits: Bounded, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices [M, count] of the largest logits, the lowest first among equals, and whether each may be another one:
    its neighbour in rank is within the errors of both."""
    order = np.argsort(-logits.value, axis=-1, kind="stable")[:, : count + 1]
    value, error = (np.take_along_axis(a, order, axis=-1) for a in (logits.value, logits.error))
    apart = value[:, :-1] - value[:, 1:] > error[:, :-1] + error[:, 1:]
    above = np.concatenate((np.ones((len(order), 1), bool), apart[:, :-1]), axis=-1)
    return order[:, :count], ~(apart & above)


def largest(logits: Bounded, u: float) -> Draw:
    """NaN is larger than any number, so the golden's own choice is argmax's."""
    _, doubtful = ranked(logits, 1)
    return reference.argmax(logits.value), doubtful[:, 0] & np.isfinite(logits.value).all(axis=-1)


def kept(logits: Bounded, u: float) -> Draw:
    return ranked(logits, TOP)


def drawn(logits: Bounded, u: float, seed: np.ndarray, step: np.ndarray) -> Draw:
    """Shares are off by a factor within exp(±2δ), δ a logit's error and rounding over the temperature, by the roundings
    of softmax and of TOP sums; an order in doubt within the TOP, or a draw that near to a share's edge, is in doubt."""
    ids, doubtful = ranked(logits, TOP)
    value, error = (np.take_along_axis(a, ids, axis=-1) for a in (logits.value, logits.error))
    weights = np.exp((value - value.max(axis=-1, keepdims=True)) / TEMPERATURE)
    shares = np.cumsum(weights / weights.sum(axis=-1, keepdims=True), axis=-1)
    shift = (error + 3 * u * np.abs(value)).max(axis=-1, keepdims=True, initial=0.0) / TEMPERATURE
    slack = np.expm1(4 * shift) + (3 * TOP + 16) * u
    draw = uniform(seed, step)[:, None] * 2.0**-24 * shares[:, -1:]
    near = np.abs(shares - draw) <= slack * np.maximum(shares, 2.0**-24)
    place = np.minimum((shares <= draw).sum(axis=-1, keepdims=True), TOP - 1)
    return np.take_along_axis(ids, place, axis=-1)[:, 0], (doubtful | near).any(axis=-1)


def traced(choice: Callable[..., Draw], setting: Setting, x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> Draw:
    run = Analysis.inside(setting)
    return choice(run.linear(run.exact(x), w), run.setting.acc.u, *rest)


def golden(*operands: np.ndarray, choice: Callable[..., Draw]) -> np.ndarray:
    return traced(choice, Setting(F32, F32), *operands)[0]


def bound(setting: Setting, want: np.ndarray, *operands: np.ndarray, choice: Callable[..., Draw]) -> np.ndarray:
    """0, and no bound where rounding may turn the choice."""
    return np.where(traced(choice, setting, *operands)[1], np.inf, 0.0)


def integers(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    """Every logit is an integer, many are equal."""
    return rng.integers(-3, 4, (d["M"], d["E"])), rng.integers(-3, 4, (d["V"], d["E"]))


def number(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return rng.integers(-(2**63), 2**63, shape)


def flops(d: Dims) -> int:
    return 2 * d["M"] * d["V"] * d["E"]


LARGEST = OpSpec(
    name="lm_head_argmax",
    module=Largest,
    golden=partial(golden, choice=largest),
    bound=partial(bound, choice=largest),
    operands=(Operand("x", "M E"), layers.weight("w", "V", "E")),
    shapes=Shapes(free={"M": around_tiles()}, static=SIZES, size=flops),
    result="M",
    cost=Cost(flops, lambda d, size: size * (d["V"] + d["M"]) * d["E"]),
    kind="layer",
    values=("normal", "positive", "spike", "one_hot"),
    exact=integers,
    out=I64,
    properties=(THREADS, prefix("M")),
)
KEPT = replace(
    LARGEST,
    name="lm_head_topk",
    module=Kept,
    golden=partial(golden, choice=kept),
    bound=partial(bound, choice=kept),
    shapes=replace(LARGEST.shapes, static=tuple({**sizes, "T": TOP} for sizes in SIZES)),
    result="M T",
    specials=("zeros", "denormal"),
)
DRAWN = replace(
    LARGEST,
    name="lm_head_sample",
    module=Drawn,
    golden=partial(golden, choice=drawn),
    bound=partial(bound, choice=drawn),
    operands=(*LARGEST.operands, *(Operand(n, "M", role="fixed", fill=number, format=I64) for n in ("seed", "step"))),
    exact=None,
    specials=("zeros", "denormal"),
)
SPECS = (LARGEST, KEPT, DRAWN)
