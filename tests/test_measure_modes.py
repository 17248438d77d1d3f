"""The benchmark of quantisation modes: what it measures, what it prints, and when it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from rich.console import Console
from typer.testing import CliRunner

from assay import cli
from assay.cli import bench
from assay.measure import mode_speed, peer
from assay.measure.ceiling import Ceiling
from assay.measure.mode_speed import ModeSpeed, decode, decode_speed
from assay.measure.model_table import ModeRow
from assay.measure.timing import Timing
from assay.tokens.session import speed_of

MB = 10**6


@dataclass
class Counting:
    """A model that only counts what it is asked."""

    calls: list[str] = field(default_factory=list)

    def reset(self) -> None:
        self.calls.append("reset")

    def prefill(self, ids) -> int:
        self.calls.append(f"prefill {len(ids)}")
        return 1

    def decode(self, token: int) -> int:
        self.calls.append("decode")
        return token

    def facts(self) -> dict[str, int]:
        return {"weight_bytes": 400 * MB}


class Still:
    """Probes of a machine that reads 40 GB/s."""

    def __init__(self, threads: int, nbytes: int) -> None:
        self.top = Ceiling(threads, 40.0, 100.0, nbytes)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, repeats: int):
        return self

    def ceiling(self) -> Ceiling:
        return self.top


def row(quant: str, ms: float, megabytes: int = 400) -> ModeSpeed:
    timing = Timing(5, 1.0, (ms,) * 4)
    return ModeSpeed(quant, ms, speed_of(timing, megabytes * MB, Ceiling(2, 40.0, 100.0, megabytes * MB)))


def test_every_token_but_the_first_is_decoded_from_a_fresh_cache() -> None:
    model = Counting()
    timing = decode(model, [1, 2, 3], 5)
    assert model.calls == ["reset", "prefill 3", *["decode"] * 4]
    assert len(timing.itl_ms) == 4


def test_the_best_of_the_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([30.0, 20.0, 25.0])
    monkeypatch.setattr(mode_speed, "Probes", Still)
    monkeypatch.setattr(mode_speed, "decode", lambda *_: Timing(3, 1.0, (next(times),) * 2))
    found = decode_speed(Counting(), "w8", [1], 3, threads=2)
    assert (found.tpot_ms, round(found.speed.achieved_gb_s or 0, 6)) == (20.0, 20.0)
    assert found.share == 0.5


def test_the_table_has_a_line_for_each_mode() -> None:
    console = Console(width=160)
    with console.capture() as shown:
        console.print(bench.table([row("w8", 20.0), row("q4_1", 25.0)], {}))
    lines = shown.get().splitlines()
    assert [line.split()[:1] for line in lines[1:]] == [["w8"], ["q4_1"]]
    assert "50.0" in lines[1] and "20.0" in lines[1] and "50%" in lines[1]
    assert row("w8", 20.0).to_dict()["tok_s"] == 50.0


def test_a_mode_below_the_least_share_fails_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "decode_speed", lambda model, quant, *_: row(quant, 20.0 if quant == "w8" else 50.0))
    arguments = ["bench", "quant", "--model", "llama-tiny", "--quant", "w8", "--quant", "fp32", "--least", "0.4"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 1
    assert "share below --least 40%: fp32" in done.output


def test_an_interrupted_table_shows_the_modes_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def mode_row(quant: str, *_: object) -> ModeRow:
        if quant == "w8":
            raise KeyboardInterrupt
        return ModeRow(
            quant, {"ok": True, "prompts": [{"equal": 63, "certified": 61}], "distribution": {"kl_mean": 0}}, {}
        )

    monkeypatch.setattr(bench, "mode_row", mode_row)
    done = CliRunner().invoke(cli.app, ["bench", "model", "--model", "llama-tiny", "--quant", "fp32", "--quant", "w8"])
    assert done.exit_code != 0 and "63 on 1 prompts" in done.output


def test_without_llama_cpp_the_benchmark_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "installed", lambda: False)
    monkeypatch.setattr(bench, "decode_speed", lambda model, quant, *_: row(quant, 20.0))
    arguments = ["bench", "quant", "--model", "llama-tiny", "--quant", "w8", "--llama-cpp"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0
    assert "llama.cpp is not timed: llama-cpp-python is not installed" in done.output
    assert "50%" in done.output


class Peer:
    """An engine that takes 40 ms for a burst."""

    def burst(self, prompt) -> float:
        return 0.04


def test_beside_llama_cpp_counts_the_same_tokens_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(0.02 * tick for tick in range(10**6))  # 20 ms between two looks at the clock
    monkeypatch.setattr(peer.time, "perf_counter", lambda: next(clock))
    model = Counting()
    found = peer.beside(Peer(), model, [1, 2, 3])
    assert (round(found.ours_ms, 6), round(found.peer_ms, 6)) == (20 / peer.BURST, 40 / peer.BURST)
    assert found.comparison.ratio == pytest.approx(0.5)
    assert model.calls[: peer.BURST + 2] == ["reset", "prefill 3", *["decode"] * peer.BURST]
    console = Console(width=160)
    with console.capture() as shown:
        console.print(bench.table([row("q4_1", 20.0)], {"q4_1": found}))
    assert "5.00" in shown.get() and "0.50 (0.50 to 0.50)" in shown.get()
