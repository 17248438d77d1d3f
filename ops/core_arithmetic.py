"""Sums, products, quotients, extremes, rounding: correctly rounded in every type; integers wrap."""

from __future__ import annotations

import numpy as np

from assay.bounds import Setting, ulps
from assay.overloads.fill import between, mixed, nonzero, ordinary
from assay.overloads.forms import one, two, with_number
from assay.overloads.spec import Form, Given, Overload

PAIR = (Given(), Given())
TRIPLE = (Given(), Given(), Given())
ALPHA = (Form("alpha", PAIR, (), {"alpha": 3}),)


def fused(setting: Setting, want: np.ndarray, x: np.ndarray, y: np.ndarray, alpha: float = 1) -> np.ndarray:
    """The product with alpha may be rounded before it is added, to the narrow type as in PyTorch: u_out·|alpha·y|; then
    the sum."""
    product = np.abs(np.asarray(alpha * np.asarray(y, np.float64))) if alpha != 1 else 0.0
    return np.asarray(setting.rounding(want) + setting.out.u * (product + np.abs(want)), np.float64) * (alpha != 1)


def is_float(x) -> bool:
    return np.issubdtype(np.asarray(x).dtype, np.floating)


def add(x, y, alpha=1):
    return np.asarray(x) | y if np.asarray(x).dtype == bool else x + y * alpha


def sub(x, y, alpha=1):
    return x - y * alpha


def rsub(x, y, alpha=1):
    return y - x * alpha


def fused_rsub(setting: Setting, want: np.ndarray, x: np.ndarray, y: np.ndarray, alpha: float = 1) -> np.ndarray:
    return fused(setting, want, y, x, alpha)


def floor_quotient(x, y):
    if np.asarray(x).dtype == bool:
        return x // y
    found = np.floor_divide(x, y)
    return np.where(y == 0, x / y, found) if is_float(x) else found


def trunc_quotient(x, y):
    if is_float(x):
        return np.trunc(x / y)  # in the type itself: the quotient is rounded first
    found = np.floor_divide(x, y)
    return found + ((found < 0) & (found * y != x)).astype(found.dtype)


def quotient(x, y, rounding_mode=None):
    modes = {"floor": floor_quotient, "trunc": trunc_quotient}
    return modes[rounding_mode](x, y) if rounding_mode else x / y


def sign(x):
    return np.where(np.isnan(x), 0, np.sign(x)) if is_float(x) else (x if x.dtype == bool else np.sign(x))


def unless_float(function):
    return lambda x: function(x) if is_float(x) else x


def round_decimals(x, decimals):
    if not is_float(x):
        return x
    ten = np.asarray(10 ** abs(decimals), x.dtype)
    return np.round(x * ten) / ten if decimals >= 0 else np.round(x / ten) * ten


def clamp(x, low=None, high=None):
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def clamp_numbers(x, low=None, high=None):
    """Bounds as the type has them."""
    return clamp(x, *(None if bound is None else np.asarray(bound).astype(x.dtype) for bound in (low, high)))


def products(setting: Setting, want: np.ndarray, x, a, b, value: float = 1) -> np.ndarray:
    """Two products, or a quotient and a product, and a sum, each rounded once in the accumulator's type."""
    added = np.abs(want - np.asarray(x, np.float64))
    return np.asarray(setting.rounding(want) + 4 * setting.acc.u * (added + np.abs(want)) + setting.acc.eta, np.float64)


def lerp_bound(setting: Setting, want: np.ndarray, start, end, weight) -> np.ndarray:
    """A difference, a product and a sum, from either end."""
    size = np.abs(start) + np.abs(end) * (1 + np.abs(weight)) + np.abs(start * weight)
    return np.asarray(setting.rounding(want) + 4 * setting.acc.u * size + setting.acc.eta, np.float64)


DIVISORS = two(second=nonzero(mixed))
NONNEGATIVE = between(0, 9)
#: Integers over -1 or 0 have no quotient in PyTorch on some CPUs; zero is an error, tested in tests/test_lower_errors.
MODES = tuple(
    Form(f"{mode} {title}", tensors, (), {"rounding_mode": mode})
    for mode in ("floor", "trunc", None)
    for title, tensors in (("equal", (Given(), Given(fill=nonzero(ordinary)))),)
)


def same_mode(*numbers) -> tuple[Form, ...]:
    return tuple(
        Form(f"{m} {n!r}", (Given(),), (n,), {"rounding_mode": m}) for n in numbers for m in ("floor", "trunc")
    )


OVERLOADS = (
    Overload("aten.add.Tensor", add, two(*ALPHA), promote="common", bound=fused),
    Overload("aten.sub.Tensor", sub, two(*ALPHA), promote="common", bound=fused),
    Overload("aten.rsub.Tensor", rsub, two(*ALPHA), promote="common", bound=fused_rsub),
    Overload("aten.add.Scalar", add, with_number(2, 0.5), promote="common", numbers=True),
    Overload("aten.sub.Scalar", sub, with_number(2, 0.5), promote="common", numbers=True),
    Overload("aten.rsub.Scalar", rsub, with_number(2, 0.5), promote="common", numbers=True),
    Overload("aten.mul.Tensor", np.multiply, two(), promote="common", signed_zero=True),
    Overload("aten.mul.Scalar", np.multiply, with_number(3, 0.7), promote="common", numbers=True),
    Overload("aten.div.Tensor", np.divide, two(), promote="float", signed_zero=True),
    Overload("aten.div.Scalar", np.divide, with_number(3, 0.7, 0), promote="float", numbers=True),
    Overload("aten.div.Tensor_mode", quotient, MODES[:2], promote="common", bound=ulps(2), precision="native"),
    Overload(
        "aten.div.Scalar_mode",
        quotient,
        same_mode(3, -2),
        promote="common",
        numbers=True,
        bound=ulps(2),
        precision="native",
    ),
    Overload("aten.floor_divide.default", floor_quotient, DIVISORS, promote="common", bound=ulps(2)),
    Overload(
        "aten.floor_divide.Scalar", floor_quotient, with_number(3, -2), promote="common", numbers=True, bound=ulps(2)
    ),
    Overload("aten.remainder.Tensor", np.remainder, DIVISORS, promote="common", bound=ulps(1)),
    Overload(
        "aten.remainder.Scalar", np.remainder, with_number(3, -2, 0.7), promote="common", numbers=True, bound=ulps(1)
    ),
    Overload(
        "aten.remainder.Scalar_Tensor",
        lambda x, y: np.remainder(np.asarray(y, x.dtype), x),
        tuple(Form(f"of {n!r}", (Given(fill=nonzero(mixed)),), (n,)) for n in (5, -7)),
        call=lambda op, x, y: op(y, x),
        promote="common",
        numbers=True,
        bound=ulps(1),
        without={"u8": "of -7 wraps"},
    ),
    Overload("aten.fmod.Tensor", np.fmod, DIVISORS, promote="common", signed_zero=True),
    Overload("aten.fmod.Scalar", np.fmod, with_number(3, -2, 0.7), promote="common", numbers=True),
    Overload("aten.neg.default", np.negative, one(), signed_zero=True),
    Overload("aten.abs.default", np.abs, one(), signed_zero=True),
    Overload("aten.sign.default", sign, one()),
    Overload("aten.sgn.default", sign, one()),
    Overload("aten.square.default", lambda x: x * x, one()),
    Overload("aten.maximum.default", np.maximum, two(), promote="common"),
    Overload("aten.minimum.default", np.minimum, two(), promote="common"),
    Overload("aten.fmax.default", np.fmax, two(), promote="common"),
    Overload("aten.fmin.default", np.fmin, two(), promote="common"),
    Overload("aten.relu.default", lambda x: np.maximum(x, 0), one()),
    Overload(
        "aten.clamp.default",
        clamp_numbers,
        tuple(Form(f"{low}..{high}", (Given(),), (low, high)) for low, high in ((1, 3), (None, 2), (1, None), (3, 1))),
    ),
    Overload(
        "aten.clamp.Tensor",
        clamp,
        (Form("both", TRIPLE), Form("rows", (Given(), Given("N"), Given("M 1")))),
        promote="common",
    ),
    Overload("aten.clamp_min.default", lambda x, n: np.maximum(x, n), with_number(2)),
    Overload("aten.clamp_min.Tensor", np.maximum, two(), promote="common"),
    Overload("aten.clamp_max.default", lambda x, n: np.minimum(x, n), with_number(2)),
    Overload("aten.clamp_max.Tensor", np.minimum, two(), promote="common"),
    Overload("aten.floor.default", unless_float(np.floor), one(), signed_zero=True),
    Overload("aten.ceil.default", unless_float(np.ceil), one(), signed_zero=True),
    Overload("aten.trunc.default", unless_float(np.trunc), one(), signed_zero=True),
    Overload("aten.round.default", unless_float(np.round), one(), signed_zero=True),
    Overload(
        "aten.round.decimals",
        round_decimals,
        tuple(Form(f"{n} digits", (Given(),), (), {"decimals": n}) for n in (2, -1, 0)),
        precision="native",
        bound=ulps(1),
    ),
    Overload("aten.frac.default", lambda x: x - np.trunc(x), one()),
    Overload("aten.copysign.Tensor", np.copysign, two(), promote="float", signed_zero=True),
    Overload(
        "aten.copysign.Scalar", np.copysign, with_number(2, -0.5), promote="float", numbers=True, signed_zero=True
    ),
    Overload(
        "aten.addcmul.default",
        lambda x, a, b, value=1: x + value * a * b,
        (Form("three", TRIPLE), Form("value", TRIPLE, (), {"value": 2})),
        kinds=("ordinary",),
        promote="common",
        bound=products,
    ),
    Overload(
        "aten.addcdiv.default",
        lambda x, a, b, value=1: x + value * a / b,
        (Form("three", TRIPLE), Form("value", TRIPLE, (), {"value": 2})),
        kinds=("positive",),
        promote="common",
        bound=products,
    ),
    Overload(
        "aten.lerp.Tensor",
        lambda a, b, w: a + w * (b - a),
        (Form("three", TRIPLE),),
        kinds=("ordinary",),
        promote="common",
        bound=lerp_bound,
    ),
    Overload(
        "aten.lerp.Scalar",
        lambda a, b, w: a + w * (b - a),
        (Form("0.3", PAIR, (0.3,)), Form("0.7", PAIR, (0.7,))),
        kinds=("ordinary",),
        numbers=True,
        bound=lerp_bound,
    ),
)
