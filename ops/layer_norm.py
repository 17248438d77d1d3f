"""layer_norm: y = (x − mean(x)) / √(mean((x − mean(x))²) + eps) · w + b over the last axis, and without w and b."""

import numpy as np
import torch
import torch.nn.functional as F

from assay.bounds import Setting, root
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles, span

EPS = 1e-5


class LayerNorm(torch.nn.Module):
    def forward(self, x, w, b):
        return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


class Plain(torch.nn.Module):
    def forward(self, x):
        return F.layer_norm(x, (x.shape[-1],), eps=EPS)


def mean(x: np.ndarray) -> np.ndarray:
    """Over the last axis, kept; 0 for an empty one."""
    return x.sum(-1, keepdims=True) / max(x.shape[-1], 1)


def normed(x: np.ndarray) -> np.ndarray:
    centred = x - mean(x)
    return centred / np.sqrt(mean(centred**2) + EPS)


def golden(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return normed(x) * w + b


def plain_bound(setting: Setting, want: np.ndarray, x: np.ndarray) -> np.ndarray:
    """As ``bounds.rms_norm`` of the centred row, plus what the mean's own error shifts: (c√D + 2)·u·mean|x| / σ.

    The shift moves every element of the row alike; through the squares it also moves σ, by at most the element's own
    square. The mean of denormals is off by up to eta, which 1/σ magnifies.
    Computing the variance as E[x²] − E[x]² leaves this bound as soon as |mean| exceeds a few σ.
    """
    size, u = x.shape[-1], setting.acc.u
    deviation = np.sqrt(mean((x - mean(x)) ** 2) + EPS)
    shift = (root(size) + 2.0) * u * mean(np.abs(x)) / deviation
    relative = (0.5 * root(size) + 4.0) * u + setting.out.u
    return relative * np.abs(want) + shift * (1.0 + want**2) + 2.0 * setting.eta * (1.0 + 1.0 / deviation)


def bound(setting: Setting, want: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The bound without w and b, scaled, plus one rounding each of the product and the sum."""
    return plain_bound(setting, normed(x), x) * np.abs(w) + 2.0 * setting.out.u * (np.abs(want) + np.abs(b))


def elements(d: Dims) -> int:
    return d["B"] * d["S"] * d["D"]


SHAPES = Shapes(free={"B": span(0, 3), "S": span(0, 9), "D": around_tiles(64, 100)})
COST = Cost(lambda d: 8 * elements(d), lambda d, size: 2 * size * elements(d))
LAYER_NORM = OpSpec(
    name="layer_norm",
    module=LayerNorm,
    golden=golden,
    bound=bound,
    operands=(Operand("x", "B S D"), Operand("w", "D", role="weight"), Operand("b", "D", role="weight")),
    shapes=SHAPES,
    result="B S D",
    cost=COST,
    properties=(THREADS, prefix("B", "S")),
)
PLAIN = OpSpec(
    name="layer_norm_plain",
    module=Plain,
    golden=normed,
    bound=plain_bound,
    operands=(Operand("x", "B S D"),),
    shapes=SHAPES,
    result="B S D",
    cost=COST,
    properties=(THREADS, prefix("B", "S")),
)
SPECS = (LAYER_NORM, PLAIN)
