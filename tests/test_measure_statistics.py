"""The statistics of speed, on synthetic times whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.measure import ab
from assay.measure.timing import Timing, peak_rss_bytes


def drifting(rng: np.random.Generator, ratio: float, pairs: int = 24, noise: float = 0.01) -> list[tuple[float, float]]:
    """Times of a machine that slows down by a third while it measures, taken in ABBA order."""
    clock = iter(np.linspace(1, 1.33, 2 * pairs))

    def run(cost: float) -> float:
        return cost * next(clock) * math.exp(rng.normal(0, noise))

    samples = []
    for order in ab.abba(pairs):
        times = {name: run(ratio if name == "head" else 1.0) for name in order}
        samples.append((times["base"], times["head"]))
    return samples


def test_identical_code_on_a_drifting_machine_is_called_the_same() -> None:
    rng = np.random.default_rng(1)
    same = ab.compare(drifting(rng, 1.0))
    false = 0
    for _ in range(40):
        session = ab.judge({f"row{i}": ab.compare(drifting(rng, 1.0)) for i in range(5)}, [same])
        false += bool(session.slower())
    assert false == 0


def test_a_slowdown_of_six_percent_is_found_and_measured() -> None:
    rng = np.random.default_rng(2)
    rows = {"slow": ab.compare(drifting(rng, 1.06)), "fast": ab.compare(drifting(rng, 0.94))}
    rows["same"] = ab.compare(drifting(rng, 1.0))

    session = ab.judge(rows, [ab.compare(drifting(rng, 1.0))])

    assert session.slower() == {"slow"}
    assert session.verdicts["fast"].change == "faster"
    assert session.verdicts["same"].change == "same"
    assert rows["slow"].low < 1.06 < rows["slow"].high
    assert not session.suspect


def test_a_change_below_the_noise_floor_of_the_session_does_not_count() -> None:
    rng = np.random.default_rng(3)
    noisy_control = ab.Comparison(ratio=1.10, low=1.05, high=1.15, p_value=0.001, pairs=12)
    session = ab.judge({"slow": ab.compare(drifting(rng, 1.06))}, [noisy_control])
    assert session.slower() == set()
    assert session.floor == pytest.approx(math.log(1.10))


def test_only_what_a_second_batch_repeats_fails() -> None:
    def session(*slow: str) -> ab.Session:
        row = ab.Comparison(1.1, 1.08, 1.12, 1e-4, 12)
        return ab.Session({name: ab.Verdict(row, "slower") for name in slow}, floor=0, suspect=False)

    assert ab.confirmed_slower(session("a", "b"), session("b", "c")) == {"b"}


def test_a_session_where_everything_moves_one_way_is_suspect() -> None:
    rng = np.random.default_rng(4)
    rows = {f"row{i}": ab.compare(drifting(rng, 1.02)) for i in range(6)}
    assert ab.judge(rows, []).suspect


def test_abba_runs_each_side_first_equally_often() -> None:
    order = list(ab.abba(4))
    assert order == [("base", "head"), ("head", "base"), ("base", "head"), ("head", "base")]


def test_interleave_warms_both_and_keeps_the_sides_apart() -> None:
    seen: list[str] = []

    def side(name: str, cost: float):
        def run() -> float:
            seen.append(name)
            return cost

        return run

    assert ab.interleave(side("b", 1.0), side("h", 2.0), pairs=2) == [(1.0, 2.0), (1.0, 2.0)]
    assert "".join(seen) == "bh" + "bhhb"


def test_benjamini_hochberg_on_the_textbook_example() -> None:
    p_values = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205]
    assert ab.benjamini_hochberg(p_values) == [True, True] + [False] * 6
    assert ab.benjamini_hochberg([0.01, 0.02, 0.03, 0.04]) == [True] * 4  # 0.04 <= 4/4 * 0.05 carries the others
    assert ab.benjamini_hochberg([]) == []


def test_too_few_pairs_and_impossible_times_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs=11, expected at least 12"):
        ab.compare([(1.0, 1.0)] * 11)
    with pytest.raises(ValueError, match=r"smallest=0\.0"):
        ab.compare([(1.0, 0.0)] * 12)


def test_equal_times_are_no_difference() -> None:
    same = ab.compare([(1.0, 1.0)] * 12)
    assert (same.ratio, same.p_value) == (1.0, 1.0)


def test_the_terms_of_a_generation() -> None:
    timing = Timing.of(prompt_tokens=10, start=1.0, arrivals=[1.5, 1.6, 1.8, 1.9])

    assert timing.ttft_ms == pytest.approx(500)
    assert timing.tpot_ms == pytest.approx(400 / 3)  # (end to end - ttft) / (4 - 1)
    assert timing.prefill_tok_s == pytest.approx(20)
    assert timing.decode_tok_s == pytest.approx(7.5)
    assert timing.read_gb_s(4e9) == pytest.approx(30)
    assert timing.to_dict()["itl_ms"]["max"] == pytest.approx(200)


def test_a_single_token_has_no_time_per_token() -> None:
    numbers = Timing.of(prompt_tokens=2, start=0.0, arrivals=[0.25]).to_dict()
    assert numbers["ttft_ms"] == 250 and numbers["tpot_ms"] is None and numbers["itl_ms"] is None


def test_peak_memory_is_in_bytes() -> None:
    assert 10 << 20 < peak_rss_bytes() < 1 << 40
