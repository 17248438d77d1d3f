"""Quantised products whose right values are known by counting, on every target."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from kernel_bench import TARGETS, KernelBench, bench, poison

from anvil import quant, targets
from anvil.quant import Quantised


@pytest.fixture(params=TARGETS)
def machine(request: pytest.FixtureRequest) -> KernelBench:
    return bench(request.param)


def parts(shape: tuple[int, int], **values: object) -> Quantised:
    """A weight of given integers and scales."""
    made: Mapping[str, torch.Tensor] = {name: torch.as_tensor(value) for name, value in values.items()}
    return Quantised(shape, made)


def multiplied(machine: KernelBench, mode: str, x: np.ndarray, weight: Quantised) -> np.ndarray:
    own = quant.get(mode)
    packed = own.pack(weight, machine.target)["w"].numpy()
    return machine.run(own.build_linear(machine.target, False), x, packed, poison(len(x), weight.shape[0]))


def test_the_first_code_is_the_lowest_nibble() -> None:
    codes = (torch.arange(32, dtype=torch.uint8) % 16).reshape(1, 1, 32).repeat(8, 1, 1)
    weight = parts((8, 32), codes=codes, scale=torch.ones(8, 1, 1, dtype=torch.float16))
    target = targets.get("x86_64-avx2")
    own = quant.get("w4-g32")
    blob = own.pack(weight, target)["w"].numpy().view(np.uint8)
    assert blob[0, :4].tobytes() == bytes([0x10, 0x32, 0x54, 0x76])
    assert torch.equal(own.unpack({"w": torch.from_numpy(blob.view(np.int8))}, (8, 32), target).parts["codes"], codes)


def test_a_zero_point_and_a_signed_nibble_are_two_formats(machine: KernelBench) -> None:
    codes = torch.zeros(4, 1, 32, dtype=torch.uint8)
    codes[:, 0, 0] = torch.tensor([0, 7, 8, 15], dtype=torch.uint8)
    scale, zero = torch.ones(4, 1, 1, dtype=torch.float16), torch.full((4, 1, 1), 8, dtype=torch.uint8)
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 1
    with_zero = parts((4, 32), codes=codes, scale=scale, zero=zero)
    assert multiplied(machine, "w4-g32z", x, with_zero).tolist() == [[-8, -1, 0, 7]]
    assert multiplied(machine, "w4-g32", x, parts((4, 32), codes=codes, scale=scale)).tolist() == [[0, 7, -8, -1]]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_single_block_is_not_skipped(machine: KernelBench, rows: int) -> None:
    codes = (torch.arange(32, dtype=torch.uint8) % 16).reshape(1, 1, 32)
    weight = parts(
        (1, 32),
        codes=codes,
        scale=torch.full((1, 1, 1), 0.5, dtype=torch.float16),
        zero=torch.full((1, 1, 1), 8, dtype=torch.uint8),
    )
    assert (multiplied(machine, "w4-g32z", np.ones((rows, 32), np.float32), weight) == -8).all()


@pytest.mark.parametrize("outputs", [4, 8, 12])
def test_one_row_over_int8_weights_is_exact(machine: KernelBench, outputs: int) -> None:
    n, k = np.arange(outputs)[:, None], np.arange(64)[None]
    codes = (3 * n + 5 * k) % 255 - 127
    weight = parts(
        (outputs, 64),
        codes=torch.from_numpy(codes.astype(np.int8)).reshape(outputs, 2, 32),
        scale=torch.from_numpy(2.0 ** -n.astype(np.float32)).reshape(outputs, 1, 1),
    )
    x = (k % 7 - 3).astype(np.float32)
    y = multiplied(machine, "w8", x, weight)
    assert (y == (codes @ x[0]) * 2.0 ** -n[:, 0]).all()
    assert y[0, :4].tolist() == [186, 88.5, 169.5, 83.625]


@pytest.mark.parametrize("rows", [1, 2])
def test_scales_of_groups_within_a_block_keep_their_inputs(machine: KernelBench, rows: int) -> None:
    """Codes of 1, four groups of 16 with scales 1, 2, 4, 8 and inputs 1, 2, 3, 4: 16 (1 + 4 + 12 + 32)."""
    scales = torch.zeros(1, 1, 16, dtype=torch.int8)
    scales[0, 0, :4] = torch.tensor([1, 2, 4, 8], dtype=torch.int8)
    weight = parts(
        (1, 256),
        scale=torch.ones(1, 1, 1, dtype=torch.float16),
        scales=scales,
        low=torch.ones(1, 1, 256, dtype=torch.uint8),
        high=torch.full((1, 1, 256), 2, dtype=torch.uint8),
    )
    x = np.repeat(np.arange(1, 17, dtype=np.float32), 16)[None].repeat(rows, 0)
    assert (multiplied(machine, "q6_k", x, weight) == 784).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_padding_of_the_last_block_does_not_count(machine: KernelBench, rows: int) -> None:
    """K = 40 in blocks of 32, zero points 8 and 3, scales 1 and 0.5; the 24 codes behind the end are not zero."""
    codes = (torch.arange(64, dtype=torch.uint8) % 16).reshape(1, 2, 32)
    weight = parts(
        (1, 40),
        codes=codes,
        scale=torch.tensor([1, 0.5], dtype=torch.float16).reshape(1, 2, 1),
        zero=torch.tensor([8, 3], dtype=torch.uint8).reshape(1, 2, 1),
    )
    x = np.arange(1, rows + 1, dtype=np.float32)[:, None].repeat(40, 1)
    assert multiplied(machine, "w4-g32z", x, weight)[:, 0].tolist() == [-14.0 * (row + 1) for row in range(rows)]
