"""A mixture of experts behind its router: each token through the experts it was sent to, weighted by normalised scores.

The choice itself is an operand: between two experts whose scores are nearly equal, rounding may decide either way.
"""

import numpy as np
import torch
import torch.nn.functional as F

from assay.analysis import Analysis, Bounded
from assay.bounds import Setting
from assay.formats import F32, I64
from assay.metamorphic import THREADS, prefix, reversal
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles

SIZES = ({"D": 16, "F": 20, "X": 4, "K": 2}, {"D": 37, "F": 9, "X": 6, "K": 3}, {"D": 8, "F": 16, "X": 3, "K": 1})


class Experts(torch.nn.Module):
    """Every token's matrices picked by index, as transformers has it."""

    def forward(self, x, scores, ids, gate_up, down):
        count = ids.shape[1]
        weights = scores / scores.sum(-1, keepdim=True)
        rows, flat = x.repeat_interleave(count, 0), ids.reshape(-1)
        hidden = torch.bmm(gate_up[flat], rows.unsqueeze(-1)).squeeze(-1)
        gate, up = hidden.chunk(2, dim=-1)
        result = torch.bmm(down[flat], (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1)
        result = result * weights.reshape(-1).unsqueeze(-1)
        return result.view(x.shape[0], count, x.shape[1]).sum(dim=1)


def traced(setting: Setting, x, scores, ids, gate_up, down) -> Bounded:
    """Expert by expert. A weight is a score over a sum of K: (K + 1)·u; weighting and adding are K + 1 more."""
    run, (count, kept) = Analysis.inside(setting), ids.shape
    value, error = np.zeros(x.shape), np.zeros(x.shape)
    weights = scores / np.sum(scores, axis=-1, keepdims=True)
    for place in np.ndindex(count, kept):
        row, expert = run.exact(x[place[0]][None]), ids[place]
        hidden, size = run.linear(row, gate_up[expert]), down.shape[2]
        gate, up = (hidden.moved(lambda a, part=part: a[:, part]) for part in (slice(size), slice(size, None)))
        out = run.linear(run.swiglu(gate, up), down[expert])
        own = weights[place] * out.value[0]
        value[place[0]] += own
        error[place[0]] += weights[place] * out.error[0] + (2 * kept + 2) * setting.acc.u * np.abs(own)
    return Bounded(value, error + 4 * setting.eta)


def golden(*operands: np.ndarray) -> np.ndarray:
    return traced(Setting(F32, F32), *operands).value


def bound(setting: Setting, want: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """Running error analysis of the golden (``assay.analysis``)."""
    return traced(setting, *operands).error + setting.rounding(want)


def positive(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Scores as a sigmoid gives them."""
    return rng.random(shape, np.float32) * 0.9 + 0.05


def chosen(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """K different experts for each token, the last expert among them once."""
    ids = rng.permuted(np.tile(np.arange(d["X"]), (shape[0], 1)), axis=1)[:, : shape[1]]
    if ids.size and not (ids == d["X"] - 1).any():
        ids[0, 0] = d["X"] - 1
    return ids


def matrix(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Normal with variance 1/in."""
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))


def flops(d: Dims) -> int:
    return 6 * d["N"] * d["K"] * d["F"] * d["D"]


EXPERTS = OpSpec(
    name="experts",
    module=Experts,
    golden=golden,
    bound=bound,
    kind="layer",
    operands=(
        Operand("x", "N D"),
        Operand("scores", "N K", role="fixed", fill=positive),
        Operand("ids", "N K", role="fixed", fill=chosen, format=I64),
        Operand("gate_up", "X G D", role="fixed", fill=matrix),
        Operand("down", "X D F", role="fixed", fill=matrix),
    ),
    shapes=Shapes(
        free={"N": around_tiles()}, static=tuple({**s, "G": 2 * s["F"]} for s in SIZES), size=lambda d: 40 * flops(d)
    ),
    result="N D",
    cost=Cost(flops, lambda d, size: size * d["X"] * d["D"] * 3 * d["F"]),
    values=("normal", "positive", "spike", "equal", "one_hot"),
    properties=(THREADS, prefix("N"), reversal("N")),
)
SPECS = (EXPERTS,)
