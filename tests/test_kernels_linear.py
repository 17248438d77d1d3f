"""The packed matrix product, its weights' layout, and the embedding that reads it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_bench import TARGETS, U32, KernelBench, assert_targets_agree, assert_within, bench, poison

from anvil import quant, targets
from anvil.errors import InputError
from anvil.kernels import linear
from anvil.kernels.panel import panel_of

FP32 = quant.get("fp32")


@pytest.fixture(params=TARGETS)
def machine(request: pytest.FixtureRequest) -> KernelBench:
    return bench(request.param)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(np.float32)


def packed(w: np.ndarray, target: targets.Target) -> np.ndarray:
    return FP32.pack(FP32.quantise(torch.from_numpy(w)), target)["w"].numpy()


def around_tiles(target: targets.Target) -> list[tuple[int, int, int]]:
    """(M, N, K) on both sides of every edge of the schedule, and sizes of zero and one."""
    edges: dict[str, int] = {}
    for name, size in linear.build(target).edges:
        edges.setdefault(name, size)
    m, n, k = edges["M"], edges["N"], edges["K"]
    return [
        *((1, columns, 5) for columns in (1, n - 1, n, n + 1, 5 * n - 3)),
        *((rows, n + 3, 9) for rows in (2, m - 1, m, m + 1, 2 * m + 1)),
        *((m + 3, 2 * n - 1, depth) for depth in (0, 1, k - 1, k, k + 1, 2 * k + 5)),
        *((1, n, depth) for depth in (0, 1, 2 * k + 5)),
        (0, 5, 3),
        (3, 0, 3),
        (1, 0, 0),
        (5 * m, 1, 1),
        (61, 2 * n, 3),
    ]


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_linear_is_exact_on_small_integers(machine: KernelBench, has_bias: bool) -> None:
    kernel = FP32.build_linear(machine.target, has_bias)
    for rows, outputs, depth in around_tiles(machine.target):
        x, w, bias = integers(rows, depth + 1)[:, :depth], integers(outputs, depth), integers(outputs)
        extra = (bias,) if has_bias else ()
        y = machine.run(kernel, x, packed(w, machine.target), *extra, poison(rows, outputs + 1)[:, :outputs], threads=3)
        want = x @ w.T + (bias if has_bias else 0)
        assert (y == want).all(), (rows, outputs, depth)


@pytest.mark.parametrize("rows", [1, 19])
def test_linear_is_within_its_bound(machine: KernelBench, rows: int) -> None:
    random = np.random.default_rng(rows)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, 300), (50, 300)))
    y = machine.run(FP32.build_linear(machine.target, False), x, packed(w, machine.target), poison(rows, 50))
    golden = x.astype(np.float64) @ w.T.astype(np.float64)
    assert_within(y, golden, U32 * np.abs(golden) + 8 * U32 * np.abs(x) @ np.abs(w.T))


def test_a_non_zero_bias_is_added_once(machine: KernelBench) -> None:
    for n in (4, 5, 17):
        one = np.ones((n, n), np.float32)
        arguments = (one, packed(one, machine.target), np.ones(n, np.float32), poison(n, n))
        assert (machine.run(FP32.build_linear(machine.target, True), *arguments) == n + 1).all()


def test_a_row_does_not_depend_on_how_many_there_are(machine: KernelBench) -> None:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((33, 140), (40, 140)))
    kernel, weight = linear.build(machine.target), packed(w, machine.target)
    together = machine.run(kernel, x, weight, poison(33, 40), threads=2)
    for row in (0, 13, 32):
        alone = machine.run(kernel, x[row : row + 1], weight, poison(1, 40))
        assert alone.tobytes() == together[row : row + 1].tobytes()


def test_all_targets_agree_to_the_bit() -> None:
    random = np.random.default_rng(1)
    x, w, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((17, 150), (70, 150), (70,)))
    for rows in (1, 17):
        assert_targets_agree(
            lambda target: linear.build(target, has_bias=True),
            lambda target, rows=rows: (x[:rows], packed(w, target), bias, poison(rows, 70)),
        )


@pytest.mark.parametrize("outputs", [0, 1, 11, 12, 16, 33, 70])
@pytest.mark.parametrize("depth", [0, 1, 7])
def test_packing_and_unpacking_give_back_the_weight(outputs: int, depth: int) -> None:
    w = torch.from_numpy(integers(outputs, depth))
    for target in targets.quick_targets():
        tensors = FP32.pack(FP32.quantise(w), target)
        (described,) = FP32.tensors(outputs, depth, target)
        assert tensors["w"].shape == described.shape
        assert torch.equal(FP32.unpack(tensors, (outputs, depth), target).parts["w"], w)
        assert not tensors["w"].transpose(1, 2).reshape(-1, max(depth, 1))[outputs:].any() or depth == 0


def test_packing_widens_half_precision_exactly() -> None:
    w = torch.randn(20, 8).to(torch.bfloat16)
    target = targets.get("x86_64-avx2")
    back = FP32.unpack(FP32.pack(FP32.quantise(w), target), (20, 8), target)
    assert torch.equal(back.parts["w"], w.float())


def test_the_embedding_reads_the_packed_table(machine: KernelBench) -> None:
    table, width = integers(40, 21), panel_of(machine.target).width
    ids = np.array([0, 39, width, width - 1, -1, 10**6])
    y = machine.run(FP32.build_embedding(machine.target), ids, packed(table, machine.target), poison(6, 21), threads=2)
    assert (y[:4] == table[ids[:4]]).all()
    assert np.isnan(y[4:]).all()


def test_a_weight_of_another_layout_is_refused() -> None:
    param = linear.build(targets.get("x86_64-avx2")).params[1]
    param.check_layout("panel16")
    with pytest.raises(InputError, match="parameter 'w' expects layout='panel16', got layout='panel32'"):
        param.check_layout("panel32")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InputError, match=r"quant='fp33' is unknown; expected one of \[.*'fp32'"):
        quant.get("fp33")
