"""maximum, minimum, relu, clamp, amax: a NaN in any operand is the result. They select and compute nothing."""

import numpy as np
import torch

from assay import bounds
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles, choice


class Maximum(torch.nn.Module):
    def forward(self, x, y):
        return torch.maximum(x, y)


class Minimum(torch.nn.Module):
    def forward(self, x, y):
        return torch.minimum(x, y)


class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


class Clamp(torch.nn.Module):
    def forward(self, x):
        return torch.clamp(x, 0.0, 1.0)


class Amax(torch.nn.Module):
    def forward(self, x):
        return torch.amax(x, dim=-1)


def maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The larger; NaN if either is."""
    return np.maximum(x, y)


def minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The smaller; NaN if either is."""
    return np.minimum(x, y)


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0); NaN stays."""
    return np.maximum(x, 0.0)


def clamp(x: np.ndarray) -> np.ndarray:
    """x limited to [0, 1]; NaN stays."""
    return np.minimum(np.maximum(x, 0.0), 1.0)


def amax(x: np.ndarray) -> np.ndarray:
    """Largest element of the last axis; NaN if one is."""
    return np.max(x, axis=-1)


NAN, INF = np.nan, np.inf
X, Y = Operand("x", "M N"), Operand("y", "M N")
LEFT, RIGHT = np.array([[NAN, 1, NAN, 0]], np.float32), np.array([[1, NAN, NAN, 2]], np.float32)


def spec(name: str, module: type[torch.nn.Module], golden, operands: tuple[Operand, ...], *known: Known) -> OpSpec:
    reduces = module is Amax
    return OpSpec(
        name=name,
        module=module,
        golden=golden,
        bound=bounds.exact,
        operands=operands,
        shapes=Shapes(
            free={"M": around_tiles(), "N": choice(1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100)},
            size=lambda d: 8 * d["M"] * d["N"],
        ),
        result="M" if reduces else "M N",
        cost=Cost(lambda d: d["M"] * d["N"], lambda d, size: (len(operands) + 1) * size * d["M"] * d["N"]),
        values=("normal", "wide", "equal", "tied"),
        specials=("zeros", "denormal", "infinite", "nan", "negative_infinite_rows", "extreme"),
        known=known,
        properties=(THREADS, prefix("M") if reduces else prefix("M", "N")),
    )


def one(x: list[list[float]], right: list) -> Known:
    return Known("NaN and Inf", (np.array(x, np.float32),), np.array(right, float), repeat="M")


SPECS = (
    spec("maximum", Maximum, maximum, (X, Y), Known("NaN wins", (LEFT, RIGHT), np.array([[NAN, NAN, NAN, 2]]), 0, "M")),
    spec("minimum", Minimum, minimum, (X, Y), Known("NaN wins", (LEFT, RIGHT), np.array([[NAN, NAN, NAN, 0]]), 0, "M")),
    spec("relu", Relu, relu, (X,), one([[NAN, -1, 2]], [[NAN, 0, 2]])),
    spec("clamp", Clamp, clamp, (X,), one([[NAN, 5]], [[NAN, 1]])),
    spec(
        "amax",
        Amax,
        amax,
        (X,),
        one([[-INF, -INF], [-INF, -3.4e38], [NAN, -INF]], [-INF, float(np.float32(-3.4e38)), NAN]),
    ),
)
