"""Packed weights: packed in parts as the whole would be, kept in a file, and never believed without a look."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import anvil
from anvil import quant, targets
from anvil.errors import InputError, WeightsError
from anvil.models import synthetic
from anvil.quant import WeightRow
from anvil.runtime import pack, packed, place
from anvil.runtime.original import Original
from anvil.runtime.pack import Packer
from anvil.runtime.packed import Layout, PackedFile
from anvil.runtime.plan import Buffer

TARGET = targets.get("x86_64-avx2")
SIZES = {"a|plain": 100, "b|plain": 64, "c|plain": 0, "d|plain": 7}
ROWS = [WeightRow("a", (5, 5), "fp32", "plain", 100, False, float("nan"))]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "initializer_range": 0.2,
}
PROMPT = [5, 17, 3, 88, 42]


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all compilations here: kernels are compiled once, and tests tell their models apart by the seed."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def in_one_cache(one_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_CACHE", str(one_cache))
    monkeypatch.setattr(place, "_SMALLEST", 0)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_CACHE", str(tmp_path))


def in_parts(mode: str, weight: Original, elements: int, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    monkeypatch.setattr(pack, "_AT_A_TIME", elements)
    (piece, *_) = quant.get(mode).tensors(*weight.shape, TARGET)
    dtype = torch.float32 if piece.dtype == "f32" else torch.int8
    out = torch.zeros(piece.shape, dtype=dtype)
    Packer(mode, TARGET)(Buffer("w", "weight", piece.dtype, piece.shape, piece.layout), "w", weight, out)
    return out


@pytest.mark.parametrize("mode", quant.modes())
def test_packing_in_parts_is_packing_the_whole(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Original.of(torch.randn(100, 256, generator=torch.Generator().manual_seed(0)))
    whole = in_parts(mode, weight, 1 << 30, monkeypatch)
    parts = in_parts(mode, weight, 1, monkeypatch)
    assert parts.numpy().tobytes() == whole.numpy().tobytes()


def filled() -> tuple[PackedFile, np.ndarray]:
    layout = Layout.of(SIZES)
    return PackedFile("name", layout), np.arange(layout.nbytes, dtype=np.uint64).astype(np.uint8)


def test_weights_do_not_share_a_cache_line() -> None:
    layout = Layout.of(SIZES)
    assert layout.places == {"a|plain": (0, 100), "b|plain": (128, 64), "c|plain": (192, 0), "d|plain": (192, 7)}
    assert layout.nbytes == 256


@pytest.mark.usefixtures("own_cache")
def test_a_file_gives_back_what_was_saved() -> None:
    file, data = filled()
    assert file.load() is None
    assert file.save(data, ROWS)
    found = file.load()
    assert found is not None
    assert found[0].tobytes() == data.tobytes()
    assert repr(found[1]) == repr(ROWS)  # NaN is not equal to itself
    assert [path.name for path in file.path.parent.iterdir()] == ["name"]


@pytest.mark.parametrize("damage", ["shorter", "longer", "flipped"])
def test_a_damaged_file_is_not_used(damage: str) -> None:
    file, data = filled()
    file.save(data, ROWS)
    raw = bytearray(file.path.read_bytes())
    if damage == "flipped":
        raw[130] ^= 1
    file.path.write_bytes({"shorter": raw[:-1], "longer": raw + b"x", "flipped": raw}[damage])
    assert file.load() is None


@pytest.mark.usefixtures("own_cache")
def test_a_file_larger_than_memory_is_filled_and_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    file, data = filled()
    monkeypatch.setattr(packed, "fits_in_memory", lambda nbytes: False)

    def write(out: np.ndarray) -> list[WeightRow]:
        out[:] = data
        return ROWS

    made, found = file.fill(write), file.load()
    assert made is not None
    assert found is not None
    assert made[0].tobytes() == found[0].tobytes() == data.tobytes()
    assert not found[0].flags.writeable


@pytest.mark.usefixtures("own_cache")
def test_no_file_takes_more_than_half_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    file, data = filled()
    monkeypatch.setattr(packed.shutil, "disk_usage", lambda folder: packed.shutil._ntuple_diskusage(1000, 600, 400))
    assert not file.save(data, ROWS)
    assert file.fill(lambda out: ROWS) is None
    assert list(file.path.parent.iterdir()) == []


@pytest.mark.usefixtures("own_cache")
def test_the_oldest_files_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.of(SIZES)
    monkeypatch.setattr(packed, "_MOST", 1200)
    files = [PackedFile(name, layout) for name in "abc"]
    for age, file in enumerate(files):
        file.save(filled()[1], ROWS)
        packed.os.utime(file.path, (age, age))
    PackedFile("d", layout).save(filled()[1], ROWS)
    left = {path.name for path in files[0].path.parent.iterdir()}
    assert "a" not in left
    assert {"c", "d"} <= left


def model(seed: int = 1, **more: object):
    return synthetic.build(CONFIG | more, seed=seed)


@pytest.mark.parametrize("mode", ["fp32", "w4-g32"])
def test_a_second_start_opens_no_weights_and_traces_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = anvil.compile(model(2), quant=mode)
    again = model(2)
    monkeypatch.setattr(again.weights, "originals", {})  # would raise KeyError
    monkeypatch.setattr("anvil.model_plans._traced_once", None)
    second = anvil.compile(again, quant=mode)
    assert set(second.compile_ms) == {"look up", "kernels", "pack"}
    assert repr(second.weights) == repr(first.weights)
    assert np.array_equal(first.logits(PROMPT), second.logits(PROMPT))
    assert first.generate(PROMPT, 8).ids == second.generate(PROMPT, 8).ids


@pytest.mark.parametrize("change", [{"rms_norm_eps": 1e-3}, {"rope_theta": 500.0}, {"num_key_value_heads": 4}])
def test_another_configuration_is_another_entry(change: dict[str, object]) -> None:
    anvil.compile(model())
    got = anvil.compile(model(**change)).logits(PROMPT)
    want = model(**change).module(torch.tensor([PROMPT])).logits[0].numpy()
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_weights_that_fit_nowhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "fits_in_memory", lambda nbytes: False)
    monkeypatch.setattr(packed.shutil, "disk_usage", lambda folder: packed.shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(InputError, match="more than is free in memory, and the cache's disk has no room"):
        anvil.compile(model(3))


def test_a_model_larger_than_memory_runs_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    want = anvil.compile(model(4).module).logits(PROMPT)
    for where in (place, packed):
        monkeypatch.setattr(where, "fits_in_memory", lambda nbytes: False)
    for _ in range(2):  # packed into the file, then found there
        assert np.array_equal(anvil.compile(model(4)).logits(PROMPT), want)


def test_a_weight_that_is_not_finite_is_named() -> None:
    loaded = model(5)
    name = "model.layers.1.mlp.up_proj.weight"
    broken = loaded.weights.originals[name].whole()
    broken[3, 4] = float("nan")
    loaded.weights.originals[name] = Original.of(broken)
    with pytest.raises(WeightsError, match=rf"weight={name} holds 1 values that are NaN.*first at \[3, 4\]"):
        anvil.compile(loaded)


def test_weights_lie_in_private_memory() -> None:
    """Shared memory gets small pages, whatever one asks for, and page walks cost a sixth of the speed."""
    data = packed.anonymous(4 << 20)
    address = data.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(place, 16) for place in line.split()[0].split("-"))
        if first <= address < last:
            assert line.split()[1] == "rw-p"
            return
    pytest.fail(f"no mapping holds {address:#x}")


@pytest.mark.parametrize(("age", "held", "stays"), [(3600, False, False), (3600, True, True), (0, False, True)])
def test_what_a_killed_writer_left_is_removed(own_cache: None, age: int, held: bool, stays: bool) -> None:
    """Unless somebody writes it still, or may be just about to."""
    file = PackedFile("next", Layout.of(SIZES))
    file.path.parent.mkdir(parents=True)
    left = file.path.with_name(".new-of-another")
    with left.open("wb") as writer:
        if held:
            fcntl.flock(writer, fcntl.LOCK_EX)
        os.utime(left, (time.time() - age,) * 2)
        assert file.save(np.zeros(file.layout.nbytes, np.uint8), ROWS)
    assert left.exists() == stays
