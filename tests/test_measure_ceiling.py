"""The measured ceilings are of the right size, and nothing may be faster than them."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path

import numpy as np
import pytest

from assay import cache
from assay.measure import ceiling


@pytest.fixture(scope="module")
def measured() -> ceiling.Ceiling:
    return ceiling.measure(threads=1, repeats=2)


def test_bandwidth_is_that_of_memory_and_not_of_a_cache_or_a_dropped_loop(measured: ceiling.Ceiling) -> None:
    assert 1 < measured.read_gb_s < 500
    wanted = max(ceiling.LEAST_BYTES, 4 * ceiling.last_level_cache())
    assert measured.nbytes >= min(wanted, ceiling.MOST_BYTES) - ceiling.ALIGN


def test_multiply_adds_are_those_of_one_core(measured: ceiling.Ceiling) -> None:
    """Between a slow scalar core and twice the widest: 64 lanes at 6 GHz make 768 GFLOP/s."""
    assert 4 < measured.fma_gflop_s < 800


def test_a_small_request_is_raised_above_the_caches() -> None:
    assert ceiling.measure(threads=2, nbytes=1, repeats=1).nbytes > ceiling.last_level_cache()


def test_a_result_above_the_ceiling_fails_the_benchmark() -> None:
    ceiling.check_truth("decode", 19.9, 20.0)
    with pytest.raises(ceiling.TruthError, match=r"decode: 21\.00 GB/s is above the measured ceiling of 20\.00"):
        ceiling.check_truth("decode", 21.0, 20.0)


def test_every_number_of_streams_reads_every_float_exactly_once() -> None:
    """Of ones, so that the sum is the count: a stream that is cut short or read twice shows."""
    count = 4 * ceiling.ALIGN
    ones = np.ones(count + 16, np.float32)
    offset = -ones.ctypes.data % 64
    for width in ceiling._widths():
        for streams in ceiling.STREAMS:
            sweep = ceiling._library(width)[f"read_sweep_{streams}"]
            sweep.argtypes, sweep.restype = (ctypes.c_void_p, ctypes.c_long), ctypes.c_float
            assert sweep(ones.ctypes.data + offset, count) == count


def test_the_probes_need_no_writable_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C compiler keeps a cache of its own, by default in the home folder."""
    (tmp_path / "home").touch()  # a file, so that nothing can be made below it
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    assert ceiling._library.__wrapped__(32).fma_spin


@pytest.mark.filterwarnings("default")
def test_a_cache_that_fills_up_while_something_is_made_is_gone_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))

    def make(path: Path) -> None:
        if path.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text("made")

    with pytest.warns(UserWarning, match="No space left on device.*going on without it"):
        assert cache.cached("full/thing", make).read_text() == "made"
    assert not list((tmp_path / "full").iterdir())
