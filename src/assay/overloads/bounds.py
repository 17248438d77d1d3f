"""Error bounds of whole families of overloads, from their goldens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from assay.bounds import Bound, Setting


def contraction(golden: Callable[..., Any], terms: Callable[..., int]) -> Bound:
    """gamma(N)·u_acc·S + one rounding + N·eta, for a golden that is linear in each of its operands.

    S is the golden of the operands' absolute values, N what ``terms`` says of operands and constants: how many
    products one element sums, and one for every rounding beside.
    """

    def bound(setting: Setting, want: np.ndarray, *operands: Any, **constants: Any) -> np.ndarray:
        sizes = [np.abs(item) if isinstance(item, np.ndarray) else item for item in operands]
        count = terms(*operands)
        size = np.asarray(golden(*sizes, **constants), np.float64)
        allowed = setting.rounding(want) + setting.gamma(count) * setting.acc.u * size + count * setting.eta
        return np.asarray(allowed, np.float64)

    return bound
