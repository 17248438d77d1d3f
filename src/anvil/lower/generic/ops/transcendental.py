"""Elementary functions and the activations built on them."""

from __future__ import annotations

from math import pi, sqrt

import torch

from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, function, magnitude, select
from anvil.lower.generic.pointwise import Pointwise, promoting

aten = torch.ops.aten


def _function(name: str):
    return lambda x: function(name, x)


def sigmoid(x: Num) -> Num:
    """1 / (1 + e^-x), from e^-|x| so that neither end overflows and tiny results keep their digits."""
    decay = function("exp", -magnitude(x))
    return select(x < 0, decay, x.const(1)) / (decay + 1)


def silu(x: Num) -> Num:
    return x * sigmoid(x)


def _gelu(x: Num, approximate: str) -> Num:
    """x Φ(x). The tanh form is x σ(2u), which keeps its digits far below zero."""
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * (2 * sqrt(2 / pi))
        return x * sigmoid(inner)
    return x * 0.5 * (function("erf", x * sqrt(0.5)) + 1)


OPS = {
    **promoting(
        PROMOTE.INT_TO_FLOAT,
        {
            **{getattr(aten, name).default: _function(name) for name in ("exp", "log", "sin", "cos", "tanh", "erf")},
            aten.sigmoid.default: sigmoid,
        },
    ),
    aten.silu.default: Pointwise(silu),
    aten.gelu.default: Pointwise(_gelu),
}
