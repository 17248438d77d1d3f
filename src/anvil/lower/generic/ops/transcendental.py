"""Elementary functions and the activations built on them."""

from __future__ import annotations

from math import inf, log, pi, sqrt

import torch

from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, compare, function, magnitude, maximum, minimum, select
from anvil.lower.generic.pointwise import Pointwise, promoting

aten = torch.ops.aten


def _function(name: str):
    return lambda x: function(name, x)


def sigmoid(x: Num) -> Num:
    """1 / (1 + e^-x), from e^-|x| so that neither end overflows and tiny results keep their digits."""
    decay = function("exp", -magnitude(x))
    return select(x < 0, decay, x.const(1)) / (decay + 1)


def _logit(x: Num, eps: float | None) -> Num:
    """log(x / (1 - x)), x first moved into [eps, 1 - eps]."""
    if eps is not None:
        x = select(x < eps, x.const(eps), select(x > 1 - eps, x.const(1 - eps), x))
    return function("log", x / (1.0 - x))


def _xlogy(x: Num, y: Num) -> Num:
    """x log y; 0 where x is 0, unless y is NaN."""
    return select(compare("eq", x, 0) & compare("eq", y, y), x.const(0.0), x * function("log", y))


def _xlog1py(x: Num, y: Num) -> Num:
    return select(compare("eq", x, 0) & compare("eq", y, y), x.const(0.0), x * function("log1p", y))


def _logaddexp(x: Num, y: Num) -> Num:
    """log(e^x + e^y) from the larger one."""
    high, low = maximum(x, y), minimum(x, y)
    value = high + function("log1p", function("exp", low - high))
    return select(compare("eq", x, y) & compare("eq", magnitude(x), inf), x, value)


def _logaddexp2(x: Num, y: Num) -> Num:
    high, low = maximum(x, y), minimum(x, y)
    value = high + function("log1p", function("exp2", low - high)) * (1 / log(2))
    return select(compare("eq", x, y) & compare("eq", magnitude(x), inf), x, value)


def _sinc(x: Num) -> Num:
    """sin(pi x) / (pi x); 1 at 0."""
    angle = x * pi
    safe = select(compare("eq", x, 0), x.const(1.0), angle)
    return select(compare("eq", x, 0), x.const(1.0), function("sin", safe) / safe)


def silu(x: Num) -> Num:
    return x * sigmoid(x)


def _gelu(x: Num, approximate: str) -> Num:
    """x Φ(x). The tanh form is x σ(2u), which keeps its digits far below zero."""
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * (2 * sqrt(2 / pi))
        return x * sigmoid(inner)
    return x * 0.5 * (function("erf", x * sqrt(0.5)) + 1)


_FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"),
)

OPS = {
    **promoting(
        PROMOTE.INT_TO_FLOAT,
        {
            **{getattr(aten, name).default: _function(name) for name in _FUNCTIONS},
            aten.atan2.default: lambda y, x: function("atan2", y, x),
            aten.logit.default: _logit,
            aten.special_expit.default: sigmoid,
            aten.xlogy.Tensor: _xlogy,
            aten.special_xlog1py.default: _xlog1py,
            aten.logaddexp.default: _logaddexp,
            aten.logaddexp2.default: _logaddexp2,
            aten.deg2rad.default: lambda x: x * (pi / 180),
            aten.rad2deg.default: lambda x: x * (180 / pi),
            aten.sinc.default: _sinc,
            aten.sigmoid.default: sigmoid,
        },
    ),
    aten.silu.default: Pointwise(silu),
    aten.gelu.default: Pointwise(_gelu),
}
