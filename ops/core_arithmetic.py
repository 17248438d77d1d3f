"""Sums, products, quotients, extremes: correctly rounded in every type; integers wrap."""

from __future__ import annotations

import numpy as np

from assay.bounds import Setting
from assay.overloads.forms import one, two, with_number
from assay.overloads.spec import Form, Given, Overload


def fused(setting: Setting, want: np.ndarray, x: np.ndarray, y: np.ndarray, alpha: float = 1) -> np.ndarray:
    """The product with alpha may be rounded before it is added, to the narrow type as in PyTorch: u_out·|alpha·y|; then
    the sum."""
    product = np.abs(np.asarray(alpha * np.asarray(y, np.float64))) if alpha != 1 else 0.0
    return np.asarray(setting.rounding(want) + setting.out.u * (product + np.abs(want)), np.float64) * (alpha != 1)


def add(x, y, alpha=1):
    return x | y if x.dtype == bool else x + y * alpha


def sub(x, y, alpha=1):
    return x - y * alpha


PAIR = (Given(), Given())
ALPHA = (Form("alpha", PAIR, (), {"alpha": 3}),)

OVERLOADS = (
    Overload("aten.add.Tensor", add, two(*ALPHA), promote="common", bound=fused),
    Overload("aten.sub.Tensor", sub, two(*ALPHA), promote="common", bound=fused),
    Overload("aten.mul.Tensor", np.multiply, two(), promote="common", signed_zero=True),
    Overload("aten.neg.default", np.negative, one(), signed_zero=True),
    Overload("aten.abs.default", np.abs, one(), signed_zero=True),
    Overload("aten.maximum.default", np.maximum, two(), promote="common"),
    Overload("aten.minimum.default", np.minimum, two(), promote="common"),
    Overload("aten.add.Scalar", add, with_number(2, 0.5), promote="common", numbers=True),
)
