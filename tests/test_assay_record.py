"""The run record: every row whole or not at all, whatever happens to the disk or the writer."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.record import CaseKey, Metric, RecordError, Result, Run, Writer, provenance
from assay.record.rows import decode, encode
from assay.record.writer import read

KEY = CaseKey("rms_norm-f32-host", "op", "rms_norm", "host")
METRIC = Metric("headroom", 0.5, "error/bound", samples=(0.4, 0.5))
RESULT = Result(KEY, "test_within_bound", "ok", examples=80, metrics=(METRIC,), run="r1")


def run() -> Run:
    return provenance.run(seed=7, command="pytest ops", backend="torch_eager", profile="ci")


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path, first = tmp_path / "sub" / "a.jsonl", run()
    writer = Writer(path)
    for row in (first, RESULT):
        writer.write(row)
    writer.close()
    assert list(read(path)) == [first, RESULT]
    assert list(read(tmp_path / "sub")) == [first, RESULT]


def test_each_row_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.jsonl")
    writer.write(RESULT)
    assert list(read(tmp_path / "a.jsonl")) == [RESULT]


def test_two_writers_do_not_lose_each_others_rows(tmp_path: Path) -> None:
    one, two = Writer(tmp_path / "a.jsonl"), Writer(tmp_path / "a.jsonl")
    for writer in (one, two, one):
        writer.write(RESULT)
    assert len(list(read(tmp_path / "a.jsonl"))) == 3


def test_a_line_cut_short_by_a_kill_is_not_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Writer(path).write(RESULT)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    assert list(read(path)) == [RESULT]


def test_damage_in_the_middle_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:1: .*type=None"):
        list(read(path))


def test_a_row_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema=99"):
        decode({**encode(RESULT), "schema": 99})


def test_numbers_that_are_not_finite_become_null() -> None:
    row = encode(Result(KEY, "c", "failed", metrics=(Metric("headroom", float("inf"), "error/bound"),)))
    assert row["metrics"][0]["value"] is None
    json.dumps(row, allow_nan=False)


def test_a_full_device_is_one_message_with_a_code() -> None:
    writer = Writer(Path("/dev/full"))
    with pytest.raises(
        RecordError, match=r"writing the run record: path=/dev/full: No space left.*another folder"
    ) as caught:
        writer.write(RESULT)
    assert caught.value.exit_code == 7


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process may grow past 600 bytes: the second row is cut by the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    yield 600
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_row_that_does_not_fit_whole_leaves_the_others_whole(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "a.jsonl"
    writer = Writer(path)
    writer.write(RESULT)
    with pytest.raises(RecordError):
        writer.write(RESULT)
    assert path.stat().st_size < small_files
    assert list(read(path)) == [RESULT]


def test_a_folder_that_cannot_be_made_is_a_record_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="opening the run record"):
        Writer(tmp_path / "file" / "a.jsonl")


def test_testbed_is_the_same_for_every_run_here() -> None:
    one, two = run(), run()
    assert one.testbed == two.testbed and one.run != two.run
    assert not {"time", "load"} & set(one.facts)
