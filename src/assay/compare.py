"""The verdict: a compiled result against the golden and its bound, element by element, and the words for a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.formats import Format

#: Aggregate floors of normalised mean square error that correct code reaches, by significand bits of the result
#: (NMSE of one rounding is about u²/3; fp32 sums measured with PyTorch 2.13). Ten times the floor fails.
NMSE_FLOOR = {24: 7e-14, 11: 4e-8, 8: 3e-6}
NMSE_FACTOR = 10.0
#: Below this many elements the mean square of a cancelled handful says nothing.
NMSE_ELEMENTS = 64


class Mismatch(AssertionError):
    """A result is outside its bound, or two runs that must agree do not. The text is the report.

    ``where`` names the places that are wrong, if the failure has places.
    """

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where


@dataclass(frozen=True)
class Verdict:
    """What comparing one output said. ``headroom`` is the worst error/bound: at most 1 passes; 0 is equal.

    ``wrong`` marks elements outside; ``worst`` is the index of the largest error/bound.
    """

    headroom: float
    wrong: np.ndarray
    worst: tuple[int, ...]
    error: float
    allowed: float
    ulps: float
    got: float
    want: float
    kind: str  # "bound", "nan", "inf", "sign of zero", "shape ..."
    nmse: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.wrong.any()


def compare(got: np.ndarray, want: np.ndarray, bound: np.ndarray, fmt: Format, *, signed_zero: bool = False) -> Verdict:
    """Compare ``got`` (in ``fmt``, held as float64 or int64) with the fp64 ``want``.

    NaN and Inf must stand exactly where the golden, rounded to ``fmt``, has them. A zero bound asks for the rounded
    golden to the bit. ``signed_zero`` also asks for the golden's sign on zeros.
    """
    if got.shape != want.shape:
        what = f"shape {got.shape}, want {want.shape}"
        return Verdict(np.inf, np.ones(1, bool), (), np.inf, 0.0, np.inf, np.nan, np.nan, what)
    rounded = fmt.round(want)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got - want)
        error = np.where((bound == 0) & (got == rounded), 0.0, error)
        ratio = np.where(error == 0, 0.0, error / bound)
    for kind, wrong in _masks(got, rounded, signed_zero):
        if wrong.any():
            return _verdict(kind, np.where(wrong, np.inf, 0.0), wrong, error, bound, got, want, fmt)
    ratio = np.where(np.isfinite(rounded), ratio, 0.0)
    return _verdict("bound", ratio, ~(ratio <= 1.0), error, bound, got, want, fmt)


def _masks(got: np.ndarray, want: np.ndarray, signed_zero: bool) -> Sequence[tuple[str, np.ndarray]]:
    if not np.issubdtype(got.dtype, np.floating):
        return ()
    infinite = (np.isinf(got) | np.isinf(want)) & (got != want) & ~np.isnan(got) & ~np.isnan(want)
    zero = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    checks = [("nan", np.isnan(got) != np.isnan(want)), ("inf", infinite)]
    return [*checks, ("sign of zero", zero)] if signed_zero else checks


def _verdict(
    kind: str,
    ratio: np.ndarray,
    wrong: np.ndarray,
    error: np.ndarray,
    bound: np.ndarray,
    got: np.ndarray,
    want: np.ndarray,
    fmt: Format,
) -> Verdict:
    if ratio.size == 0:
        return Verdict(0.0, wrong, (), 0.0, 0.0, 0.0, np.nan, np.nan, kind)
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(np.isnan(ratio), np.inf, ratio)), ratio.shape))
    ulp = float(fmt.ulp(np.asarray(want[worst], np.float64))) if fmt.is_float else 1.0
    headroom = np.inf if np.isnan(ratio[worst]) else float(ratio[worst])
    values = (float(error[worst]), float(bound[worst]), float(error[worst]) / ulp, float(got[worst]))
    return Verdict(headroom, wrong, worst, *values, float(want[worst]), kind, nmse(got, want))


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Σ(got − want)² / Σ want² over the elements finite in both; 0 where there is nothing to compare."""
    keep = np.isfinite(got) & np.isfinite(want)
    power = float(np.sum(np.square(want[keep], dtype=np.float64)))
    return float(np.sum(np.square(got[keep] - want[keep], dtype=np.float64))) / power if power else 0.0


def nmse_allowed(fmt: Format) -> float:
    """Largest aggregate error for a result of this format; Inf for a format without a measured floor."""
    return NMSE_FACTOR * NMSE_FLOOR.get(fmt.bits, np.inf)


def rounding_bias(got: np.ndarray, want: np.ndarray, fmt: Format) -> tuple[float, float]:
    """(mean signed error in ulp, allowed ±) of N rounded results.

    Rounding to nearest leaves errors uniform in ±½ ulp: their mean has deviation 1/√(12 N), three of which are allowed.
    Truncation, which passes every one-ulp test, sits at −½ on positive data. The error counts away from zero.
    """
    error = (got - want) * np.sign(want) / fmt.ulp(want)
    error = error[np.isfinite(error)]
    return (float(np.mean(error)), 3.0 / float(np.sqrt(12.0 * error.size))) if error.size else (0.0, 0.0)


def spread(wrong: np.ndarray, axes: Sequence[str], edges: dict[str, int] | None = None) -> str:
    """Where the failures are: ``17 of 462 elements, all in D=32 (the tail)``.

    Names every axis on which the wrong elements occupy one index or one contiguous end while others are free.
    """
    count, total = int(wrong.sum()), wrong.size
    places: list[str] = []
    for axis, name in enumerate(axes[: wrong.ndim]):
        others = tuple(a for a in range(wrong.ndim) if a != axis)
        hit = np.flatnonzero(wrong.any(axis=others))
        n = wrong.shape[axis]
        if len(hit) == n or n == 1:
            continue
        places.append(_place(name, hit, n))
    everywhere = "everywhere" if count == total else "scattered"
    return f"{count} of {total} elements, " + ("all in " + ", ".join(places) if places else everywhere)


def _place(name: str, hit: np.ndarray, n: int) -> str:
    """One axis' part of the spread: a single index, a range, or the number of indices; the last index is the tail."""
    first, last = int(hit[0]), int(hit[-1])
    where = f"{name}={first}" if first == last else f"{name}={first}..{last}"
    if last - first + 1 != len(hit):
        where = f"{name} in {len(hit)} of {n} places ({', '.join(map(str, hit[:4]))}{', ...' if len(hit) > 4 else ''})"
    return where + (" (the tail)" if last == n - 1 and last - first + 1 == len(hit) else "")
