"""Elementary functions: 4 ulp in f32 and f64, one rounding more where the result is narrower."""

from __future__ import annotations

import mpmath
import numpy as np
from scipy import special

from assay.bounds import Setting, ulps
from assay.overloads.fill import ordinary
from assay.overloads.forms import one, two, with_number
from assay.overloads.spec import Form, Given, Overload


def error_function(scipys, mpmaths):
    """scipy's, good to an ulp of f64, for narrower types; for f64 40 digits."""

    def of_element(x):
        if not np.isfinite(x):
            return scipys(float(x))
        with mpmath.workdps(40):
            value = mpmaths(mpmath.mpf(float(x)))
            high = float(value)
            return np.longdouble(high) + np.longdouble(float(value - high))

    def golden(x):
        if np.asarray(x).dtype != np.longdouble:
            return scipys(x)
        return np.array([of_element(v) for v in np.ravel(x)], np.longdouble).reshape(np.shape(x))

    return golden


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def function(name: str, golden, bound: float = 4) -> Overload:
    return Overload(f"aten.{name}.default", golden, one(), promote="float", bound=ulps(bound), precision="extended")


NUMPY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sigmoid": sigmoid,
}  # fmt: skip


def power(x, y):
    """Floats in extended precision; integers modulo their width, a negative exponent leaving only 1 and -1."""
    if np.issubdtype(np.asarray(x).dtype, np.floating):
        if np.ndim(y) == 0 and abs(y) == 0.5:  # PyTorch takes roots, which differ at -Inf
            return np.sqrt(x) if y > 0 else 1 / np.sqrt(x)
        return np.power(x, y)
    if np.asarray(x).dtype == bool:
        return x | ~np.asarray(y, bool)
    wide = np.broadcast_arrays(np.asarray(x), np.asarray(y))
    bits = wide[0].dtype.itemsize * 8
    found = [_integer_power(int(a), int(b), bits) for a, b in zip(wide[0].flat, wide[1].flat, strict=True)]
    return np.array(found, object).reshape(wide[0].shape).astype(np.uint64).astype(wide[0].dtype)


def _integer_power(base: int, exponent: int, bits: int) -> int:
    if exponent >= 0:
        return pow(base, exponent, 1 << bits)
    value = base ** (exponent % 2) if base in (1, -1) else 0
    return value % (1 << bits)


def xlogy(x, y):
    return np.where((x == 0) & ~np.isnan(y), 0, x * np.log(y))


def xlog1py(x, y):
    return np.where((x == 0) & ~np.isnan(y), 0, x * np.log1p(y))


def sinc_bound(setting: Setting, want, x) -> np.ndarray:
    """The angle pi x is rounded: absolute u_acc of it in the sine, and 6 ulp."""
    return np.asarray(setting.rounding(want) + 6 * setting.acc.ulp(want) + 2 * setting.acc.u, np.float64)


def log_sum_bound(setting: Setting, want, x, y) -> np.ndarray:
    """The larger and a logarithm of at most ln 2, which are off by an ulp and 8·u_acc."""
    size = np.maximum(np.abs(x), np.abs(y))
    return np.asarray(setting.rounding(want) + setting.acc.u * (size + 8 + np.abs(want)), np.float64)


POW_PAIRS = two(Form("halves", (Given(), Given(fill=ordinary))))

OVERLOADS = (
    *(function(name, golden) for name, golden in NUMPY.items()),
    function("erf", error_function(special.erf, mpmath.erf)),
    function("erfc", error_function(special.erfc, mpmath.erfc)),
    function("rsqrt", lambda x: 1 / np.sqrt(x), 2),
    Overload("aten.sqrt.default", np.sqrt, one(), promote="float"),
    Overload("aten.reciprocal.default", lambda x: 1 / x, one(), promote="float"),
    Overload(
        "aten.atan2.default", np.arctan2, two(), promote="float", bound=ulps(4), precision="extended", signed_zero=True
    ),
    Overload("aten.hypot.default", np.hypot, two(), promote="common", bound=ulps(4), precision="extended"),
    Overload("aten.pow.Tensor_Tensor", power, POW_PAIRS, promote="common", bound=ulps(4), precision="extended"),
    Overload(
        "aten.pow.Tensor_Scalar",
        power,
        with_number(3, 2, 0.5, -0.5, -1, 7, 1.3, 65, 0),
        promote="common",
        numbers=True,
        bound=ulps(4),
        precision="extended",
    ),
    Overload(
        "aten.pow.Scalar",
        lambda x, base: power(np.asarray(base, x.dtype), x),
        with_number(2, 0.3, -1.5),
        call=lambda op, x, base: op(base, x),
        promote="common",
        numbers=True,
        bound=ulps(4),
        precision="extended",
    ),
    Overload("aten.special_expit.default", sigmoid, one(), promote="float", bound=ulps(4), precision="extended"),
    Overload("aten.deg2rad.default", np.deg2rad, one(), promote="float", bound=ulps(2), precision="extended"),
    Overload("aten.rad2deg.default", np.rad2deg, one(), promote="float", bound=ulps(2), precision="extended"),
    Overload("aten.sinc.default", np.sinc, one(fill=ordinary), promote="float", bound=sinc_bound, precision="extended"),
    Overload("aten.xlogy.Tensor", xlogy, two(), promote="float", bound=ulps(5), precision="extended"),
    Overload("aten.special_xlog1py.default", xlog1py, two(), promote="float", bound=ulps(5), precision="extended"),
    Overload(
        "aten.logaddexp.default", np.logaddexp, two(), kinds=("ordinary",), bound=log_sum_bound, precision="extended"
    ),
    Overload(
        "aten.logaddexp2.default", np.logaddexp2, two(), kinds=("ordinary",), bound=log_sum_bound, precision="extended"
    ),
)
