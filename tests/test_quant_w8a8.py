"""w8a8: activations rounded per row, and sums of integers that are exact on every instruction that makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_bench import TARGETS, KernelBench, bench, poison
from test_quant_kernels import multiplied, normal, packed

from anvil import quant, targets
from anvil.errors import UnsupportedError
from anvil.kernels import quantise_rows
from anvil.kernels.dots import dot_of
from anvil.quant.base import Quantised
from anvil.runtime import status

MODE = quant.get("w8a8")
OTHERS = [target.name for target in targets.all_targets() if not target.quick]


@pytest.fixture(params=TARGETS)
def machine(request: pytest.FixtureRequest) -> KernelBench:
    return bench(request.param)


def rounded(machine: KernelBench, x: np.ndarray, offset: int = 0, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of rows."""
    outs = poison(len(x), -(-x.shape[1] // 32) * 32, dtype="int8"), poison(len(x))
    found = machine.run_all(quantise_rows.build(machine.target, offset), x, *outs, threads=threads)
    return found["codes"], found["scale"]


def test_codes_are_rounded_half_to_even_and_saturate(machine: KernelBench) -> None:
    x = np.array([[127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 0.49999997, 0.50000006, -0.0]], np.float32)
    codes, scale = rounded(machine, x)
    assert scale.tolist() == [1]
    assert codes[0].tolist() == [127, -127, 0, 2, 2, 0, -2, -2, 126, 0, 1, 0, *[0] * 20]


def test_codes_are_those_of_pytorch(machine: KernelBench) -> None:
    x = normal(5, 75) * np.array([[1], [1e-3], [1e30], [1e-42], [3]], np.float32)
    x[4] = 3  # all equal
    codes, scale = rounded(machine, x, threads=3)
    want = torch.from_numpy(x).abs().amax(1, keepdim=True) / 127
    assert np.array_equal(scale, want[:, 0].numpy())
    assert np.array_equal(codes[:, :75], (torch.from_numpy(x) / want).round().clamp(-127, 127).numpy())
    assert not codes[:, 75:].any()
    np.testing.assert_array_equal(MODE.activations.rounded(torch.from_numpy(x)), codes[:, :75] * want.double().numpy())


def test_a_row_has_its_own_scale(machine: KernelBench) -> None:
    """A later token, or padding of a batch, changes nothing of an earlier one."""
    x = normal(4, 96)
    codes, scale = rounded(machine, x)
    x[3] *= 1000
    again, scales = rounded(machine, x)
    assert np.array_equal(codes[:3], again[:3])
    assert np.array_equal(scale[:3], scales[:3])
    assert scales[3] > 500 * scale[3]


def test_rows_of_zeros_and_rows_that_are_not_finite(machine: KernelBench) -> None:
    x = normal(4, 40)
    x[0], x[1, 7], x[2, 39] = 0, np.nan, -np.inf
    codes, scale = rounded(machine, x)
    assert scale[0] == 0
    assert not codes[0].any()
    assert np.isnan(scale[1:3]).all()
    assert np.isfinite(scale[3])


def test_an_offset_makes_codes_unsigned(machine: KernelBench) -> None:
    x = normal(3, 50)
    assert np.array_equal(rounded(machine, x)[0].view(np.uint8) + np.uint8(128), rounded(machine, x, 128)[0].view("u1"))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rows", [1, 5])
def test_sums_of_extremes_do_not_saturate(machine: KernelBench, rows: int, sign: int) -> None:
    """K 127 127: pairs of products reach the ends of 16 bits, sums are beyond the integers of f32."""
    x, codes = np.full((rows, 4096), 127, np.float32), np.full((3, 128, 32), sign * 127, np.int8)
    weight = Quantised((3, 4096), {"codes": torch.from_numpy(codes), "scale": torch.ones(3, 1, 1)})
    y = multiplied(machine, MODE, x, packed(MODE, weight, machine.target), poison(rows, 3))
    assert (y == sign * 4096 * 127 * 127).all()


def test_too_many_inputs_for_32_bits_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="inputs=133145; sums of at most 133144 products"):
        MODE.tensors(1, 133145, targets.get("x86_64-avx2"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_targets_give_the_same_bits(name: str) -> None:
    """The targets that a quick run leaves out: their instructions, their packing, their vector lengths."""
    here = status(targets.get(name), isolated=True)
    if not here.runs:
        pytest.skip(here.reason)
    w, bias = normal(70, 150), normal(70)
    for mode in (MODE, quant.get("q4_1"), quant.get("fp32")):
        for rows in (1, 4, 17):
            x = normal(rows, 150)
            got, want = (
                multiplied(own, mode, x, packed(mode, w, own.target), bias, poison(rows, 70), threads=2)
                for own in (bench(name), bench("x86_64-avx2"))
            )
            assert got.tobytes() == want.tobytes(), (mode.name, rows)


def test_every_dot_has_a_target() -> None:
    assert {dot_of(target).name for target in targets.all_targets()} == {
        "vpdpbusd",
        "vpmaddubsw",
        "sdot",
        "smmla",
        "saddw",
        "vwmacc",
    }
