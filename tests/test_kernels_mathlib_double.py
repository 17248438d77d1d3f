"""The elementary functions in f64 against 64-bit significands: error bounds, special values, hard arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from kernel_bench import bench, poison

from anvil.kernels import mathlib
from anvil.kernels.base import Kernel
from anvil.kernels.define import define, memref
from anvil.kernels.dsl import LANES, Ref, Val
from anvil.kernels.flow import each_vector, my_range
from anvil.targets import Target


def exactly(function: Callable[..., mpmath.mpf]) -> Callable[..., np.ndarray]:
    """In 50 digits, then as the nearest number of 64 bits and what is left of it."""

    def of(*arguments: np.ndarray) -> np.ndarray:
        with mpmath.workdps(50):
            values = [function(*map(mpmath.mpf, map(float, at))) for at in zip(*arguments, strict=True)]
            return np.array([np.longdouble(float(v)) + np.longdouble(float(v - float(v))) for v in values])

    return of


#: function, bound in ulp, range of the arguments. numpy's longdouble has 64 bits on x86, 11 more than are judged.
ORDINARY: dict[str, tuple[Callable[..., np.ndarray], float, tuple[float, float]]] = {
    "acos": (np.arccos, 2, (-1, 1)),
    "acosh": (np.arccosh, 3, (1, 1e3)),
    "asin": (np.arcsin, 3, (-1, 1)),
    "asinh": (np.arcsinh, 3, (-1e3, 1e3)),
    "atan": (np.arctan, 2, (-20, 20)),
    "atanh": (np.arctanh, 3, (-1, 1)),
    "cos": (np.cos, 1, (-1e3, 1e3)),
    "cosh": (np.cosh, 3, (-710, 710)),
    "erf": (exactly(mpmath.erf), 2, (-6, 6)),
    "erfc": (exactly(mpmath.erfc), 4, (-6, 26)),
    "exp": (np.exp, 1, (-740, 709)),
    "exp2": (np.exp2, 1, (-1070, 1023)),
    "expm1": (np.expm1, 2, (-40, 709)),
    "log": (np.log, 1, (0, 1e3)),
    "log10": (np.log10, 2, (0, 1e3)),
    "log1p": (np.log1p, 2, (-1, 1e3)),
    "log2": (np.log2, 2, (0, 1e3)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, (0, 1e3)),
    "sin": (np.sin, 1, (-1e3, 1e3)),
    "sinh": (np.sinh, 3, (-710, 710)),
    "tan": (np.tan, 3, (-1e3, 1e3)),
    "tanh": (np.tanh, 3, (-20, 20)),
}
ROUNDING = {"ceil": np.ceil, "floor": np.floor, "roundeven": np.round, "trunc": np.trunc}
BINARY = ("atan2", "fmod", "powf")
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 5e-324, -5e-324, 2.3e-308, 1.7e308, -1.7e308, 2, -3, 0.5]
)


@functools.cache
def kernel(target: Target, name: str, count: int) -> Kernel:
    """y[i] = f(x[i], ...)."""

    def body(*arguments: Ref | Val) -> None:
        *inputs, y, tid, nthreads = arguments

        def apply(column: Val, mask: Val | None) -> None:
            values = [x.load(column, lanes=LANES, mask=mask).ssa for x in inputs]
            y.store(Val(mathlib.emit(name, *values)), column, mask=mask)

        each_vector(*my_range(y.dim(0), tid, nthreads), apply)

    inputs = [memref(f"x{i}", "in", "f64", 1) for i in range(count)]
    return define(f"double_{name}", [*inputs, memref("y", "out", "f64", 1)], body)


def apply(name: str, *arguments: np.ndarray, target: str = "x86_64-avx2") -> np.ndarray:
    machine = bench(target)
    return machine.run(
        kernel(machine.target, name, len(arguments)), *arguments, poison(arguments[0].size).astype(np.float64)
    )


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in units of the last place of f64; where the right value is not finite, equality."""
    rounded = want.astype(np.float64)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    error = np.abs(got[finite] - want[finite]) / np.spacing(np.abs(rounded[finite]))
    return float(error.max(initial=0.0))


def samples(low: float, high: float, count: int) -> np.ndarray:
    """Even, and crowded around zero and around both ends, and special ones."""
    rng = np.random.default_rng(7)
    even = rng.uniform(low, high, count)
    small = np.ldexp(rng.uniform(-1, 1, count // 2), rng.integers(-300, 3, count // 2))
    ends = np.concatenate([low + np.abs(small), high - np.abs(small)])
    return np.concatenate([even, small, ends, SPECIAL])


def test_every_function_is_tested() -> None:
    assert set(mathlib.functions(double=True)) == {*ORDINARY, *ROUNDING, *BINARY}


@pytest.mark.parametrize("name", ORDINARY)
def test_within_its_bound(name: str) -> None:
    golden, bound, (low, high) = ORDINARY[name]
    x = samples(low, high, 200 if name.startswith("erf") else 20_000)
    if name.startswith("erf"):
        x = x[np.abs(x) < 1e3]
    with np.errstate(all="ignore"):
        assert ulps(apply(name, x), golden(x.astype(np.longdouble))) <= bound


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_no_argument_is_too_large(name: str) -> None:
    """Every exponent, and the f64 closest to a multiple of pi/2 (6381956970095103 2^797)."""
    rng = np.random.default_rng(5)
    x = np.concatenate([np.ldexp(rng.uniform(1, 2, 1023), np.arange(1, 1024)), [np.ldexp(6381956970095103.0, 797)]])
    with mpmath.workdps(400):
        want = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x]
        exact = np.array([np.longdouble(float(v)) + np.longdouble(float(v - float(v))) for v in want])
    assert ulps(apply(name, x), exact) <= 3


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_is_exact_and_keeps_the_sign(name: str) -> None:
    x = np.concatenate([samples(-9, 9, 5000), np.arange(-5, 5.25, 0.25), [2.0**52 - 0.5, 2.0**51 + 0.5, -(2.0**53)]])
    got, want = apply(name, x), ROUNDING[name](x)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Every special value with every other, and random ones of very different size."""
    rng = np.random.default_rng(3)
    x, y = (np.ldexp(rng.uniform(-1, 1, count), rng.integers(-60, 60, count)) for _ in range(2))
    grid = np.meshgrid(SPECIAL, SPECIAL)
    return np.concatenate([x, grid[0].ravel()]), np.concatenate([y, grid[1].ravel()])


def test_fmod_is_exact_for_any_quotient() -> None:
    x, y = pairs(4000)
    x = np.concatenate([x, np.full(8, 1.7e308), [5e-324 * 7, 1e300]])
    y = np.concatenate([y, [5e-324, 3e-310, 1e-300, 3.0, 0.7, 1e200, -2.0, 1e308], [5e-324 * 3, -7e-300]])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(apply("fmod", x, y), np.fmod(x, y))


def test_atan2_in_every_quadrant() -> None:
    y, x = pairs(4000)
    got, want = apply("atan2", y, x), np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    assert ulps(got, want) <= 2
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(got)].all()


def test_power_is_within_an_ulp_and_special_where_ieee_is() -> None:
    rng = np.random.default_rng(11)
    base, exponent = np.abs(pairs(4000)[0][:4000]), rng.uniform(-18, 18, 4000)
    x, y = pairs(0)
    x, y = np.concatenate([base, x, -base[:500]]), np.concatenate([exponent, y, np.round(exponent[:500])])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        assert ulps(apply("powf", x, y), want) <= 1
        np.testing.assert_array_equal(np.signbit(apply("powf", x, y)[want == 0]), np.signbit(want[want == 0]))
