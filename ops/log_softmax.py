"""log_softmax over the last axis: y = (x − max) − log Σ exp(x − max)."""

import numpy as np
import torch

from assay.bounds import Setting, root
from assay.metamorphic import THREADS, prefix
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Shapes, around_tiles


class LogSoftmax(torch.nn.Module):
    def forward(self, x):
        return torch.log_softmax(x, dim=-1)


def centred(x: np.ndarray) -> np.ndarray:
    """x − max over the last axis."""
    return x - np.max(x, axis=-1, keepdims=True, initial=-np.inf)


def golden(x: np.ndarray) -> np.ndarray:
    """A row of −Inf alone is NaN, as in PyTorch."""
    shifted = centred(x)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def bound(setting: Setting, want: np.ndarray, x: np.ndarray) -> np.ndarray:
    """u_out·|y| + (|x − max| + Σ p·|x − max| + c√N + 8 + 8·log s)·u_acc, s = Σ exp(x − max), p = exp(y).

    |x − max| is the rounding of the difference, once in y itself and once, weighted by p, in s: exp makes an absolute
    error of its argument a relative one, and log turns it back. The first 8 is exp, 8·log s is log: 4 ulp each, and an
    ulp is at most 2 u.
    """
    shift = np.abs(centred(x))
    seen = np.where(np.exp(want) > 0, np.exp(want) * shift, 0.0).sum(axis=-1, keepdims=True)
    log_sum = np.abs(-shift - want)
    return setting.out.u * np.abs(want) + (shift + seen + root(x.shape[-1]) + 8.0 + 8.0 * log_sum) * setting.acc.u


FAR = Known(
    "values whose exp overflows or vanishes: the maximum is subtracted first",
    (np.array([[1000, 1000], [-1000, -1000], [0, -1000]], np.float32),),
    np.array([[-0.6931471805599453] * 2, [-0.6931471805599453] * 2, [0, -1000]]),
    digits=1e-6,
)
BLOCKED = Known("nothing but -Inf is NaN", (np.full((1, 5), -np.inf, np.float32),), np.full((1, 5), np.nan), repeat="M")

LOG_SOFTMAX = OpSpec(
    name="log_softmax",
    module=LogSoftmax,
    golden=golden,
    bound=bound,
    operands=(Operand("x", "M N"),),
    shapes=Shapes(free={"M": around_tiles(), "N": around_tiles(100)}),
    result="M N",
    cost=Cost(lambda d: 5 * d["M"] * d["N"], lambda d, size: 2 * size * d["M"] * d["N"]),
    specials=("zeros", "denormal", "infinite", "nan", "negative_infinite_rows"),
    known=(FAR, BLOCKED),
    properties=(THREADS, prefix("M")),
)
SPECS = (LOG_SOFTMAX,)
