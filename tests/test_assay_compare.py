"""The comparison itself: what passes, what fails, and what is said about it."""

from __future__ import annotations

import numpy as np
import pytest

from assay.compare import compare, nmse, nmse_allowed, rounding_bias, spread
from assay.formats import BF16, F16, F32, FORMATS, I64, Format, of


def verdict(got: list[float], want: list[float], bound: float = 0.0, **options: bool):
    return compare(np.array(got), np.array(want), np.full(len(want), bound), F32, **options)


def test_inside_and_outside_the_bound() -> None:
    inside, outside = verdict([1.0, 2.5], [1.0, 2.0], 0.5), verdict([1.0, 2.6], [1.0, 2.0], 0.5)
    assert inside.passed and inside.headroom == 1.0
    assert not outside.passed and outside.worst == (1,) and outside.headroom == pytest.approx(1.2)


def test_zero_bound_asks_for_the_rounded_golden() -> None:
    third = float(np.float32(1 / 3))
    assert verdict([third], [1 / 3]).passed
    assert not verdict([np.nextafter(np.float32(third), np.float32(1))], [1 / 3]).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_stand_where_the_golden_has_them(value: float) -> None:
    assert verdict([value, 1.0], [value, 1.0]).passed
    assert not verdict([value, 1.0], [0.0, 1.0], 1e300).passed
    assert not verdict([0.0, 1.0], [value, 1.0], 1e300).passed


def test_infinities_of_opposite_sign_differ() -> None:
    assert verdict([np.inf], [-np.inf], 1.0).kind == "inf"


def test_overflow_of_the_format_is_infinity() -> None:
    assert verdict([np.inf], [1e39]).passed
    assert not verdict([3.4e38], [1e39], 1e39).passed


def test_sign_of_zero_only_where_asked() -> None:
    assert verdict([0.0], [-0.0]).passed
    assert verdict([0.0], [-0.0], signed_zero=True).kind == "sign of zero"


def test_a_missing_bound_never_passes() -> None:
    assert not verdict([1.0], [2.0], np.nan).passed


def test_shapes_must_agree() -> None:
    wrong = compare(np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((3, 2)), F32)
    assert not wrong.passed and "shape (2, 3), want (3, 2)" in wrong.kind


def test_empty_results_pass() -> None:
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)), F32).passed


def test_integers_are_exact() -> None:
    assert not compare(np.array([3]), np.array([4]), np.zeros(1), I64).passed


def test_aggregate_catches_one_zeroed_row_of_many() -> None:
    want = np.random.default_rng(0).standard_normal((4096, 64))
    got = want.copy()
    got[7] = 0
    assert nmse(got, want) > 1000 * nmse_allowed(F32)
    assert nmse(want.astype(np.float32).astype(np.float64), want) < nmse_allowed(F32)


@pytest.mark.parametrize("fmt", [BF16, F16], ids=lambda f: f.name)
def test_bias_catches_truncation_that_passes_one_ulp(fmt: Format) -> None:
    want = np.abs(np.random.default_rng(1).standard_normal(4096)) + 0.1
    nearest = fmt.round(want)
    truncated = np.where(nearest > want, nearest - fmt.ulp(nearest - fmt.ulp(want) / 2), nearest)
    assert (np.abs(truncated - want) <= fmt.ulp(want)).all()
    bias, allowed = rounding_bias(nearest, want, fmt)
    assert abs(bias) <= allowed
    bias, allowed = rounding_bias(truncated, want, fmt)
    assert bias < -allowed


def test_bias_of_nothing_is_nothing() -> None:
    assert rounding_bias(np.zeros(0), np.zeros(0), F32) == (0.0, 0.0)


def where(shape: tuple[int, ...], axes: str, *index: object) -> str:
    wrong = np.zeros(shape, bool)
    wrong[index] = True
    return spread(wrong, axes.split())


def test_spread_names_the_tail() -> None:
    assert where((2, 7, 33), "B S D", ..., 32) == "14 of 462 elements, all in D=32 (the tail)"
    assert where((4, 33), "M N", ..., slice(29, None)) == "16 of 132 elements, all in N=29..32 (the tail)"


def test_spread_names_rows_and_scattered_places() -> None:
    assert where((4, 8), "M N", 2) == "8 of 32 elements, all in M=2"
    assert where((4, 8), "M N", ..., slice(0, None, 2)) == "16 of 32 elements, all in N in 4 of 8 places (0, 2, 4, 6)"
    assert where((4, 8), "M N") == "32 of 32 elements, everywhere"


def test_ulp_is_the_distance_to_the_next_number() -> None:
    x = np.array([1.0, 1.5, 2.0, 1e-40, 3e38, 0.0], np.float32)
    assert (F32.ulp(x.astype(np.float64)) == np.spacing(x).astype(np.float64)).all()
    assert np.isnan(F32.ulp(np.array([np.inf, np.nan]))).all()


def test_formats_know_their_constants() -> None:
    assert (F32.u, F16.u, BF16.u) == (2.0**-24, 2.0**-11, 2.0**-8)
    assert F32.eta == 2.0**-149
    assert all(of(f.torch) is f for f in FORMATS.values())


def test_an_unknown_dtype_is_named() -> None:
    import torch

    with pytest.raises(KeyError, match=r"torch\.complex64"):
        of(torch.complex64)
