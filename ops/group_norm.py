"""group_norm: layer_norm's formula over the channels of one group and all positions, then w and b per channel."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from assay.bounds import Setting
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Operand, OpSpec, load
from assay.strategies.shapes import Dims, Shapes, around_tiles, span

layer_norm = load(Path(__file__).with_name("layer_norm.py"))
GROUPS = 2


class GroupNorm(torch.nn.Module):
    def forward(self, x, w, b):
        return F.group_norm(x, GROUPS, w, b, layer_norm.EPS)


def grouped(x: np.ndarray) -> np.ndarray:
    """[B, C, L] as [B, groups, channels of a group times L]: what is normalised together is the last axis."""
    return x.reshape(x.shape[0], GROUPS, x.shape[1] // GROUPS * x.shape[2])


def golden(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return layer_norm.normed(grouped(x)).reshape(x.shape) * w[:, None] + b[:, None]


def bound(setting: Setting, want: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """That of layer_norm over a group: the plain bound, scaled, plus one rounding each of the product and the sum."""
    plain = layer_norm.plain_bound(setting, layer_norm.normed(grouped(x)), grouped(x)).reshape(x.shape)
    return plain * np.abs(w)[:, None] + 2.0 * setting.out.u * (np.abs(want) + np.abs(b)[:, None])


def elements(d: Dims) -> int:
    return d["B"] * d["C"] * d["L"]


GROUP_NORM = OpSpec(
    name="group_norm",
    module=GroupNorm,
    golden=golden,
    bound=bound,
    operands=(Operand("x", "B C L"), Operand("w", "C", role="weight"), Operand("b", "C", role="weight")),
    shapes=Shapes(
        free={"B": span(0, 3), "L": around_tiles(100)},
        static=({"C": 6}, {"C": 2 * GROUPS}, {"C": 34}),  # F.group_norm refuses a group of one element
    ),
    result="B C L",
    cost=Cost(lambda d: 8 * elements(d), lambda d, size: 2 * size * elements(d)),
    properties=(THREADS, prefix("B")),
)
SPECS = (GROUP_NORM,)
