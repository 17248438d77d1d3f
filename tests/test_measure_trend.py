"""Series of recorded speeds: a lasting change is found where it is; noise and spikes are not one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_records import run_row, timing
from typer.testing import CliRunner

from assay.cli import app
from assay.dashboard import page
from assay.measure.trend import change_points, series
from assay.record import Row, Writer


def noisy(rng: np.random.Generator, level: float, count: int) -> np.ndarray:
    return level * np.exp(rng.normal(0, 0.01, count))


def test_a_lasting_change_is_found_at_its_place() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([noisy(rng, 1.3, 20), noisy(rng, 1.4, 15), noisy(rng, 1.25, 12)])
    assert [place for place, _ in change_points(values)] == [20, 35]


def test_noise_alone_is_no_change_in_ninety_nine_of_a_hundred_series() -> None:
    rng = np.random.default_rng(1)
    assert sum(bool(change_points(noisy(rng, 1.3, 40))) for _ in range(300)) <= 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a spike", [1.3] * 12 + [2.6] + [1.3] * 12),
        ("four bad runs", [1.3, 1.31] * 6 + [2.6] * 4),
        ("a change of 1 %", [1.300, 1.301] * 10 + [1.313, 1.314] * 10),
        ("too few runs", [1.0] * 4 + [2.0] * 4),
        ("nothing", []),
    ],
)
def test_what_is_no_lasting_change(name: str, values: list[float]) -> None:
    assert change_points(np.array(values)) == [], name


def records(shares: list[float | None], testbeds: list[str]) -> list[Row]:
    """A run a day with a timing of model "m": its share of the ceiling, and a prefill twice as fast as eager."""
    rows: list[Row] = []
    for day, (share, testbed) in enumerate(zip(shares, testbeds, strict=True), 1):
        run = replace(run_row(f"202601{day:02}T000000-abcdef"), commit=f"{day:08}", testbed=testbed)
        row = timing("m", "host")
        known = {"ceiling_share": share, "prefill512_speedup": 2.0}
        metrics = tuple(replace(m, value=known.get(m.name, m.value)) for m in row.metrics)
        rows += [run, replace(row, metrics=metrics, run=run.run)]
    return rows


def test_a_series_is_one_phase_on_one_testbed_and_a_missing_value_stays_missing() -> None:
    found = series(records([0.8, None, 0.5, 0.8], ["a", "a", "b", "a"]))
    assert [(each.testbed, each.phase) for each in found] == [
        ("a", "decode"),
        ("a", "prefill"),
        ("b", "decode"),
        ("b", "prefill"),
    ]
    assert [point.value for point in found[0].points] == [1.25, None, 1.25] and found[0].values == [1.25, 1.25]
    assert found[1].values == [0.5, 0.5, 0.5]


def test_a_change_names_the_run_and_commit_since_when_whatever_is_missing(tmp_path: Path) -> None:
    shares = [0.8, 0.79] * 4 + [None] + [0.7, 0.71] * 4
    rows = records(shares, ["a"] * len(shares))
    (change,) = series(rows)[0].changes()
    assert change.point.commit == f"{10:08}" and change.ratio == pytest.approx(0.795 / 0.705, rel=0.02)
    writer = Writer(tmp_path / "runs.jsonl")
    for row in rows:
        writer.write(row)
    done = CliRunner().invoke(app, ["trend", "--records", str(tmp_path), "--json"])
    decode = json.loads(done.stdout)[0]
    assert [found["commit"] for found in decode["changes"]] == [f"{10:08}"]
    html = page.render(rows)
    assert "Trend" in html and f"{10:08}" in html and "1 lasting changes" in html
