"""Activations: what they are made of rounds a few times; each bound counts how often."""

from __future__ import annotations

import numpy as np
import torch
from scipy import special

from assay.bounds import Setting, ulps
from assay.overloads.forms import one
from assay.overloads.spec import Form, Given, Overload

X = (Given(),)


def relative(count: float):
    """``count``·u_acc·(1 + |x|)·|y| and 4 ulp: functions of at most 4 ulp whose argument may be off by u·|x|."""

    def bound(setting: Setting, want, x, *_, **__) -> np.ndarray:
        size = np.where(np.isfinite(x), np.abs(x), 0)
        error = count * setting.acc.u * (1 + size) * np.abs(want) + 4 * setting.acc.ulp(want)
        return np.asarray(error + setting.rounding(want) + size * setting.acc.smallest_normal, np.float64)

    return bound


def absolute(count: float):
    """``count``·u_acc beside |x|: terms of opposite sign are added."""

    def bound(setting: Setting, want, x, *_, **__) -> np.ndarray:
        size = np.where(np.isfinite(x), np.abs(x), 0)
        return np.asarray(
            setting.rounding(want) + count * setting.acc.u * (size + np.abs(want)) + setting.acc.eta, np.float64
        )

    return bound


def sigmoid(x):
    return special.expit(x)


def silu(x):
    return x * sigmoid(x)


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return x * special.ndtr(x)


def gelu_bound(setting: Setting, want, x, approximate="none") -> np.ndarray:
    """4·u_acc·|x| and 4 ulp: 1 + erf cancels far below zero."""
    size = np.where(np.isfinite(x), np.abs(x), 0)
    wide = 1 + (3 * size**3 if approximate == "tanh" else 0)
    error = 4 * setting.acc.u * (size + np.abs(want) * wide) + 4 * setting.acc.ulp(want) + setting.rounding(want)
    return np.asarray(error, np.float64)


def elu(x, alpha=1, scale=1, input_scale=1):
    return np.where(x > 0, x * scale, alpha * scale * np.expm1(x * input_scale))


def selu(x):
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def celu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(x / alpha))


def softplus(x, beta=1, threshold=20):
    return np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)


def mish(x):
    return x * np.tanh(np.logaddexp(0, x))


def hard_sigmoid(x):
    return np.minimum(np.maximum(x + 3, 0), 6) / 6


def log_sigmoid(x):
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def leaky(x, slope=0.01):
    return np.where(x > 0, x, x * slope)


def hardtanh(x, low=-1, high=1):
    return np.minimum(np.maximum(x, low), high)


def threshold(x, limit, value):
    return np.where(x <= limit, np.asarray(value, x.dtype), x)


def softshrink(x, lambd=0.5):
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0))


def hardshrink(x, lambd=0.5):
    return np.where((x >= -lambd) & (x <= lambd), 0, x)


def logit(x, eps=None):
    x = x if eps is None else np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


def logit_bound(setting: Setting, want, x, eps=None) -> np.ndarray:
    """The quotient is off by 2u, which is absolute in its logarithm."""
    return np.asarray(setting.rounding(want) + 4 * setting.acc.ulp(want) + 4 * setting.acc.u, np.float64)


def inside(rng, shape, dtype):
    """Between the poles."""
    return torch.from_numpy(np.asarray(rng.uniform(0.01, 0.99, shape))).to(dtype)


OVERLOADS = (
    Overload("aten.silu.default", silu, one(), bound=relative(4)),
    Overload(
        "aten.gelu.default",
        gelu,
        (*one(), Form("tanh", X, (), {"approximate": "tanh"})),
        bound=gelu_bound,
        without={"f64": "1 + erf"},
    ),
    Overload("aten.elu.default", elu, (*one(), Form("scaled", X, (0.5, 2.0, 1.5))), bound=relative(4)),
    Overload("aten.selu.default", selu, one(), bound=relative(4)),
    Overload("aten.celu.default", celu, (*one(), Form("alpha", X, (0.5,))), bound=relative(6)),
    Overload("aten.leaky_relu.default", leaky, (*one(), Form("slope", X, (0.25,))), bound=ulps(1)),
    Overload("aten.hardtanh.default", hardtanh, (*one(), Form("-2..3", X, (-2, 3)))),
    Overload("aten.hardsigmoid.default", hard_sigmoid, one(), bound=absolute(2)),
    Overload("aten.hardswish.default", lambda x: x * hard_sigmoid(x), one(), kinds=("ordinary",), bound=absolute(8)),
    Overload("aten.softplus.default", softplus, (*one(), Form("beta", X, (2, 10))), bound=relative(6)),
    Overload("aten.mish.default", mish, one(), kinds=("ordinary",), bound=relative(8)),
    Overload("aten.log_sigmoid.default", log_sigmoid, one(), bound=absolute(6)),
    Overload("aten.relu6.default", lambda x: hardtanh(x, 0, 6), one()),
    Overload("aten.threshold.default", threshold, (Form("0.5", X, (0, 1)),)),
    Overload("aten.softshrink.default", softshrink, one()),
    Overload("aten.hardshrink.default", hardshrink, one()),
    Overload(
        "aten.logit.default",
        logit,
        one(fill=inside),
        bound=logit_bound,
        promote="float",
        without=dict.fromkeys(("i64", "i32", "i16", "i8", "u8", "bool"), "whole numbers are its poles"),
    ),
)
