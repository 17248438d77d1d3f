"""Activations written in comparisons and elementary functions."""

from __future__ import annotations

import torch

from anvil.lower.generic.num import Num, function, magnitude, maximum, minimum, select
from anvil.lower.generic.pointwise import Pointwise

aten = torch.ops.aten


def _elu(x: Num, alpha: float, scale: float, input_scale: float) -> Num:
    below = function("expm1", x * input_scale) * (alpha * scale)
    return select(x > 0, x * scale, below)


def _celu(x: Num, alpha: float) -> Num:
    return select(x > 0, x, function("expm1", x / x.const(alpha)) * alpha)


def _selu(x: Num) -> Num:
    return _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


def _leaky_relu(x: Num, negative_slope: float) -> Num:
    return select(x > 0, x, x * negative_slope)


def _hardtanh(x: Num, low: float, high: float) -> Num:
    return minimum(maximum(x, low), high)


def _hardsigmoid(x: Num) -> Num:
    return minimum(maximum(x + 3.0, 0), 6) / 6.0


def _hardswish(x: Num) -> Num:
    return x * minimum(maximum(x + 3.0, 0), 6) / 6.0


def softplus(x: Num, beta: float, threshold: float) -> Num:
    """log(1 + e^(beta x)) / beta; x itself above the threshold."""
    scaled = x * beta
    return select(scaled > threshold, x, function("log1p", function("exp", scaled)) / x.const(beta))


def _mish(x: Num) -> Num:
    return x * function("tanh", function("log1p", function("exp", x)))


def _log_sigmoid(x: Num) -> Num:
    """-log(1 + e^-x), from e^-|x| so that nothing overflows."""
    return minimum(x, 0) - function("log1p", function("exp", -magnitude(x)))


def _threshold(x: Num, threshold: Num, value: Num) -> Num:
    """NaN passes."""
    return select(x <= threshold, value, x)


def _softshrink(x: Num, lambd: float) -> Num:
    return select(x > lambd, x - lambd, select(x < -lambd, x + lambd, x * 0.0))


def _hardshrink(x: Num, lambd: float) -> Num:
    inside = (x >= -lambd) & (x <= lambd)
    return select(inside, x.const(0.0), x)


OPS = {
    aten.elu.default: Pointwise(_elu, raw=("alpha", "scale", "input_scale")),
    aten.celu.default: Pointwise(_celu, raw=("alpha",)),
    aten.selu.default: Pointwise(_selu),
    aten.leaky_relu.default: Pointwise(_leaky_relu, raw=("negative_slope",), cheap=True),
    aten.hardtanh.default: Pointwise(_hardtanh, raw=("min_val", "max_val"), cheap=True),
    aten.relu6.default: Pointwise(lambda x: _hardtanh(x, 0, 6), cheap=True),
    aten.hardsigmoid.default: Pointwise(_hardsigmoid, cheap=True),
    aten.hardswish.default: Pointwise(_hardswish, cheap=True),
    aten.softplus.default: Pointwise(softplus, raw=("beta", "threshold")),
    aten.mish.default: Pointwise(_mish),
    aten.log_sigmoid.default: Pointwise(_log_sigmoid),
    aten.threshold.default: Pointwise(_threshold, cheap=True),
    aten.softshrink.default: Pointwise(_softshrink, raw=("lambd",), cheap=True),
    aten.hardshrink.default: Pointwise(_hardshrink, raw=("lambd",), cheap=True),
}
