"""The kernels that work row by row: rms_norm, swiglu, rope, argmax, embedding, kv_append, copy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import TARGETS, U32, KernelBench, assert_targets_agree, assert_within, bench, poison

from anvil import kernels
from anvil.errors import UnsupportedError
from anvil.kernels import argmax, copy, embedding, kv_append, rms_norm, rope, swiglu

EPS = 1e-5
SIZES = [1, 15, 16, 17, 31, 33, 80]  # around the 16 lanes of a vector


@pytest.fixture(params=TARGETS)
def machine(request: pytest.FixtureRequest) -> KernelBench:
    return bench(request.param)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def rows_with_gaps(rows: int, columns: int) -> np.ndarray:
    """A [rows, columns] view whose rows do not follow each other."""
    return normal(rows, columns + 3)[:, :columns]


def rms_norm_golden(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(1, keepdims=True) + np.float64(np.float32(EPS))) * w


@pytest.mark.parametrize("size", SIZES)
def test_rms_norm_is_within_its_bound(machine: KernelBench, size: int) -> None:
    x, w = rows_with_gaps(3, size), normal(size)
    y = machine.run(rms_norm.build(machine.target), x, w, poison(3, size), EPS, threads=2)
    golden = rms_norm_golden(x, w)
    assert_within(y, golden, (2 * np.sqrt(size) / 2 + 5) * U32 * np.abs(golden))


def test_rms_norm_of_nothing_writes_nothing(machine: KernelBench) -> None:
    for rows, size in ((0, 5), (3, 0)):
        machine.run(rms_norm.build(machine.target), normal(rows, size), normal(size), poison(rows, size), EPS)


def test_rms_norm_keeps_a_spike_and_a_row_of_zeros(machine: KernelBench) -> None:
    x = np.full((2, 64), 0.01, np.float32)
    x[0, 5], x[1] = 1e3, 0
    y = machine.run(rms_norm.build(machine.target), x, np.ones(64, np.float32), poison(2, 64), 1e-6)
    assert y[0, 5] == pytest.approx(8.0, rel=1e-5) and y[0, 0] == pytest.approx(8e-5, rel=1e-5)
    assert not y[1].any()


def test_rms_norm_of_a_row_does_not_depend_on_its_neighbours() -> None:
    machine = bench(TARGETS[-1])
    kernel, w = rms_norm.build(machine.target), normal(64)
    rows = np.stack([np.sin(0.37 * np.arange(r * 64, (r + 1) * 64)) for r in range(257)]).astype(np.float32)
    for count in (255, 256, 257):
        together = machine.run(kernel, rows[:count], w, poison(count, 64), EPS, threads=2)
        alone = machine.run(kernel, rows[count - 1 : count], w, poison(1, 64), EPS)
        assert together[-1:].tobytes() == alone.tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_swiglu_is_within_its_bound(machine: KernelBench, size: int) -> None:
    gate, up = 4 * rows_with_gaps(2, size), rows_with_gaps(2, size + 1)[:, :size]
    y = machine.run(swiglu.build(machine.target), gate, up, poison(2, size), threads=3)
    wide = gate.astype(np.float64)
    golden = wide / (1 + np.exp(-wide)) * up
    assert_within(y, golden, 4 * U32 * np.abs(wide * up) + 4 * np.spacing(np.abs(golden).astype(np.float32)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 5, 64), (1, 9, 4, 80), (2, 2, 3, 34)])
def test_rope_rotates_halves(machine: KernelBench, shape: tuple[int, int, int, int]) -> None:
    batch, heads, steps, size = shape
    x = normal(batch, steps, heads, size).transpose(0, 2, 1, 3)
    cos, sin = (np.broadcast_to(normal(1, steps + i, size)[:, :steps], (batch, steps, size)) for i in (0, 1))
    y = machine.run(rope.build(machine.target), x, cos, sin, poison(*shape), threads=2)
    low, high = x[..., : size // 2].astype(np.float64), x[..., size // 2 :].astype(np.float64)
    golden = x.astype(np.float64) * cos[:, None] + np.concatenate([-high, low], -1) * sin[:, None]
    terms = np.abs(x * cos[:, None]) + np.abs(np.concatenate([high, low], -1) * sin[:, None])
    assert_within(y, golden, 2 * U32 * terms)


def test_rope_halves_and_not_neighbours(machine: KernelBench) -> None:
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 1, 4)
    angles = np.array([1, 0.01, 1, 0.01])
    cos, sin = (f(angles).astype(np.float32).reshape(1, 1, 4) for f in (np.cos, np.sin))
    y = machine.run(rope.build(machine.target), x, cos, sin, poison(1, 1, 1, 4))
    assert y.ravel() == pytest.approx([-1.98411, 1.95990, 2.46238, 4.01980], abs=1e-5)


def test_rope_of_a_slice_of_features_equals_that_of_its_copy(machine: KernelBench) -> None:
    x = np.sin(0.37 * np.arange(144)).astype(np.float32).reshape(2, 3, 2, 12)[..., 8:].transpose(0, 2, 1, 3)
    angles = np.arange(3)[:, None] * 10000.0 ** -np.array([0, 0.5, 0, 0.5])
    cos, sin = (np.broadcast_to(f(angles).astype(np.float32), (2, 3, 4)) for f in (np.cos, np.sin))
    kernel = rope.build(machine.target)
    of_slice = machine.run(kernel, x, cos, sin, poison(2, 2, 3, 4))
    of_copy = machine.run(kernel, np.ascontiguousarray(x), cos, sin, poison(2, 2, 3, 4))
    assert of_slice.tobytes() == of_copy.tobytes()
    assert (of_slice[:, :, 0] == x[:, :, 0]).all()


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([np.nan, 4.6151], 0),
        ([2, np.nan, 7], 1),
        ([1, np.nan, np.nan], 1),
        ([-np.inf] * 5, 0),
        ([0.0, -0.0, 0.0], 0),
        ([1.0] * 40, 0),
        ([0.0] * 16 + [3.0] * 20, 16),
        ([-1.0] * 33 + [5.0], 33),
        ([7.0] + [0.0] * 31 + [7.0], 0),
        ([0.0] * 20 + [np.nan] + [9.0] * 3 + [np.nan] * 9, 20),
        ([-3.0, -np.inf] + [-5.0] * 15, 0),
    ],
)
def test_argmax_takes_the_first_of_equals_and_the_first_nan(machine: KernelBench, row: list[float], want: int) -> None:
    y = machine.run(argmax.build(machine.target), np.array([row], np.float32), poison(1, dtype="int64"))
    assert y.tolist() == [want]


@pytest.mark.parametrize("size", SIZES)
def test_argmax_is_exact(machine: KernelBench, size: int) -> None:
    x = rows_with_gaps(4, size)
    y = machine.run(argmax.build(machine.target), x, poison(4, dtype="int64"), threads=3)
    assert y.tolist() == x.argmax(1).tolist()


def test_embedding_copies_rows_and_never_reads_outside(machine: KernelBench) -> None:
    table, ids = normal(5, 33), np.array([0, 4, 2, -1, 5, 2**40])
    y = machine.run(embedding.build(machine.target), ids, table, poison(6, 33), threads=2)
    assert y[:3].tobytes() == table[ids[:3]].tobytes()
    assert np.isnan(y[3:]).all()


@pytest.mark.parametrize("size", [1, 16, 33])
def test_kv_append_writes_its_slots_and_nothing_else(machine: KernelBench, size: int) -> None:
    new = normal(2, 3, 2, size).transpose(0, 2, 1, 3)
    cache, past = normal(2, 6, 2, size).transpose(0, 2, 1, 3), np.array([0, 3])
    after = machine.run(kv_append.build(machine.target), new, past, cache, threads=2)
    want = cache.copy()
    want[0, :, 0:3], want[1, :, 3:6] = new[0], new[1]
    assert after.tobytes() == np.ascontiguousarray(want).tobytes() or (after == want).all()


def test_kv_append_past_the_last_slot_stays_inside(machine: KernelBench) -> None:
    cache = normal(1, 1, 4, 8)
    after = machine.run(kv_append.build(machine.target), normal(1, 1, 3, 8), np.array([3]), cache)
    assert (after[..., :3, :] == cache[..., :3, :]).all() and (after[..., 3, :] == normal(1, 1, 3, 8)[..., 0, :]).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_copy_reads_any_strides(machine: KernelBench, rank: int) -> None:
    shape = (2, 3, 1, 5, 17)[-rank:]
    x = normal(*reversed(shape)).transpose()
    y = machine.run(copy.build(machine.target, rank=rank), x, poison(*shape), threads=3)
    assert y.tobytes() == np.ascontiguousarray(x).tobytes()


def test_copy_of_a_broadcast_and_of_integers(machine: KernelBench) -> None:
    x = np.broadcast_to(np.array([[1], [-(2**40)]]), (2, 20))
    y = machine.run(copy.build(machine.target, rank=2, dtype="i64"), x, poison(2, 20, dtype="int64"))
    assert y.tolist() == x.tolist()


def test_all_targets_agree_to_the_bit() -> None:
    x, w = 3 * normal(5, 83), normal(83)
    assert_targets_agree(rms_norm.build, lambda target: (x, w, poison(5, 83), EPS))
    assert_targets_agree(swiglu.build, lambda target: (x, normal(5, 83), poison(5, 83)))
    q, cos, sin = normal(2, 3, 4, 40), normal(2, 4, 40), normal(2, 4, 40)
    assert_targets_agree(rope.build, lambda target: (q, cos, sin, poison(2, 3, 4, 40)))


def test_a_kernel_is_found_by_its_name() -> None:
    assert kernels.get("rms_norm") is rms_norm
    with pytest.raises(UnsupportedError, match=r"name='rms_nrom' is unknown; expected one of \['argmax'"):
        kernels.get("rms_nrom")
