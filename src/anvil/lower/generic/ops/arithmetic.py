"""Addition to powers, and roots."""

from __future__ import annotations

from math import inf

import torch

from anvil.lower.generic.call import PROMOTE
from anvil.lower.generic.num import Num, bits_of, compare, function, magnitude, maximum, minimum, select
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
    """Whole exponents up to 64 and halves by multiplication and square roots, others as :func:`power`."""
    if not x.is_float:
        return _integer_power(x, x.const(exponent)) if exponent < 0 or exponent > 64 else _small_power(x, exponent)
    if exponent == 0.5:
        return function("sqrt", x)
    if exponent == -0.5:
        return 1.0 / function("sqrt", x)
    if exponent == int(exponent) and abs(exponent) <= 3:
        whole = _small_power(x, abs(exponent))
        return whole if exponent >= 0 else 1.0 / whole
    return function("powf", x, x.const(exponent))


def _small_power(x: Num, exponent: float) -> Num:
    return x.const(1) if exponent == 0 else _whole_power(x, int(exponent))


def power(x: Num, exponent: Num) -> Num:
    """x^y: of floats in the precision of the type, of integers modulo its width, where a negative exponent leaves
    nothing but 1 and -1."""
    return function("powf", x, exponent) if x.is_float else _integer_power(x, exponent)


def _integer_power(x: Num, exponent: Num) -> Num:
    if x.dtype == "i1":
        return x | (exponent ^ 1)
    result, base, left = x.const(1), x, exponent
    steps = bits_of(x.dtype) - (0 if x.dtype == "ui8" else 1)
    for step in range(steps):
        result = select(compare("ne", left & (1 << step), 0), result * base, result)
        base = base * base
    if x.dtype == "ui8":
        return result
    odd = compare("ne", exponent & 1, 0)
    minus_one = select(odd, x, x.const(1))
    negative = select(compare("eq", x, 1), x, select(compare("eq", x, -1), minus_one, x.const(0)))
    return select(compare("lt", exponent, 0), negative, result)


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


def _fmax(x: Num, y: Num) -> Num:
    """The larger; a NaN yields to a number."""
    return (
        select(compare("ne", x, x), y, select(compare("ne", y, y), x, maximum(x, y))) if x.is_float else maximum(x, y)
    )


def _fmin(x: Num, y: Num) -> Num:
    return (
        select(compare("ne", x, x), y, select(compare("ne", y, y), x, minimum(x, y))) if x.is_float else minimum(x, y)
    )


def _lerp(start: Num, end: Num, weight: Num) -> Num:
    """From the nearer end, as PyTorch."""
    step = end - start
    return select(magnitude(weight) < 0.5, start + weight * step, end - step * (1.0 - weight))


def _hypot(x: Num, y: Num) -> Num:
    """sqrt(x² + y²) of f64, and of the larger times what is left in f64 itself, so that no square overflows."""
    if x.dtype != "f64":
        wide_x, wide_y = x.to("f64"), y.to("f64")
        value = function("sqrt", wide_x * wide_x + wide_y * wide_y).to(x.dtype)
        return select(_either_infinite(x, y), x.const(inf), value)
    large, small = maximum(magnitude(x), magnitude(y)), minimum(magnitude(x), magnitude(y))
    ratio = small / select(compare("eq", large, 0), large.const(1.0), large)
    value = large * function("sqrt", ratio * ratio + 1.0)
    return select(_either_infinite(x, y), x.const(inf), value)


def _either_infinite(x: Num, y: Num) -> Num:
    return compare("eq", magnitude(x), inf) | compare("eq", magnitude(y), inf)


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
            aten.sgn.default: _sign,
            aten.fmax.default: _fmax,
            aten.fmin.default: _fmin,
            aten.square.default: _square,
            aten.maximum.default: maximum,
            aten.minimum.default: minimum,
            aten.relu.default: _relu,
            aten.clamp.default: _clamp,
            aten.clamp.Tensor: _clamp,
            aten.clamp_min.default: maximum,
            aten.clamp_min.Tensor: maximum,
            aten.clamp_max.default: minimum,
            aten.clamp_max.Tensor: minimum,
            aten.addcmul.default: lambda x, a, b, value: x + a * b * value,
            aten.lerp.Scalar: _lerp,
            aten.lerp.Tensor: _lerp,
        },
        cheap=True,
    ),
    **promoting(
        PROMOTE.INT_TO_FLOAT,
        {
            aten.div.Tensor: _div,
            aten.div.Scalar: _div,
            aten.reciprocal.default: _reciprocal,
            aten.addcdiv.default: lambda x, a, b, value: x + a / b * value,
            aten.hypot.default: _hypot,
            aten.copysign.Tensor: lambda x, y: function("copysign", x, y),
            aten.copysign.Scalar: lambda x, y: function("copysign", x, y),
            aten.sqrt.default: lambda x: function("sqrt", x),
            aten.rsqrt.default: lambda x: function("rsqrt", x),
        },
    ),
    aten.pow.Tensor_Scalar: Pointwise(_pow_scalar, PROMOTE.BOOL_TO_LONG, plain=("exponent",)),
    aten.pow.Tensor_Tensor: Pointwise(power, PROMOTE.BOOL_TO_LONG),
    aten.pow.Scalar: Pointwise(power, PROMOTE.BOOL_TO_LONG),
}
