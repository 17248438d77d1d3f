"""Addition to powers, and roots."""

from __future__ import annotations

import torch

from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, function, magnitude, maximum, minimum, select
from anvil.lower.generic.pointwise import Pointwise, promoting

aten = torch.ops.aten


def _add(x: Num, y: Num, alpha: Num) -> Num:
    return x | y if x.dtype == "i1" else x + y * alpha


def _sub(x: Num, y: Num, alpha: Num) -> Num:
    return x - y * alpha


def _rsub(x: Num, y: Num, alpha: Num) -> Num:
    return y - x * alpha


def _mul(x: Num, y: Num) -> Num:
    return x & y if x.dtype == "i1" else x * y


def _div(x: Num, y: Num) -> Num:
    return x / y


def _reciprocal(x: Num) -> Num:
    return 1.0 / x


def _sign(x: Num) -> Num:
    """-1, 0 or 1; 0 for NaN."""
    one, zero = x.const(1), x.const(0)
    if x.dtype in ("ui8", "i1"):
        return select(x > 0, one, zero)
    return select(x > 0, one, select(x < 0, x.const(-1), zero))


def _square(x: Num) -> Num:
    return x * x


def _pow_scalar(x: Num, exponent: float) -> Num:
    """Small whole exponents and halves by multiplication and square roots, as PyTorch does."""
    if exponent == 0:
        return x.const(1)
    if exponent == 0.5:
        return function("sqrt", x)
    if exponent == -0.5:
        return 1.0 / function("sqrt", x)
    if exponent == int(exponent) and (exponent > 0 or x.is_float) and abs(exponent) <= 64:
        power = _whole_power(x, abs(int(exponent)))
        return power if exponent > 0 else 1.0 / power
    raise NotImplementedError(f"exponent={exponent}: expected a whole number up to 64, or 0.5 or -0.5")


def _whole_power(x: Num, exponent: int) -> Num:
    """By repeated squaring."""
    result: Num | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    assert result is not None
    return result


def _relu(x: Num) -> Num:
    return maximum(x, 0)


def _clamp(x: Num, low: Num | None, high: Num | None) -> Num:
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


OPS = {
    **promoting(
        PROMOTE.DEFAULT,
        {
            aten.add.Tensor: _add,
            aten.add.Scalar: _add,
            aten.sub.Tensor: _sub,
            aten.sub.Scalar: _sub,
            aten.rsub.Tensor: _rsub,
            aten.rsub.Scalar: _rsub,
            aten.mul.Tensor: _mul,
            aten.mul.Scalar: _mul,
            aten.neg.default: lambda x: -x,
            aten.abs.default: magnitude,
            aten.sign.default: _sign,
            aten.square.default: _square,
            aten.maximum.default: maximum,
            aten.minimum.default: minimum,
            aten.relu.default: _relu,
            aten.clamp.default: _clamp,
            aten.clamp.Tensor: _clamp,
            aten.clamp_min.default: lambda x, low: maximum(x, low),
            aten.clamp_max.default: lambda x, high: minimum(x, high),
        },
        cheap=True,
    ),
    **promoting(
        PROMOTE.INT_TO_FLOAT,
        {
            aten.div.Tensor: _div,
            aten.div.Scalar: _div,
            aten.reciprocal.default: _reciprocal,
            aten.sqrt.default: lambda x: function("sqrt", x),
            aten.rsqrt.default: lambda x: function("rsqrt", x),
        },
    ),
    aten.pow.Tensor_Scalar: Pointwise(_pow_scalar, PROMOTE.BOOL_TO_LONG, raw=("exponent",)),
}
