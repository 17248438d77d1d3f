"""Kernels over quantised weights, every mode on every target: against the same integers and scales, dequantised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_bench import TARGETS, U32, KernelBench, assert_within, bench, poison

from anvil import quant, targets
from anvil.kernels.panel import panel_of
from anvil.quant import QuantMode
from anvil.quant.base import Quantised
from anvil.runtime import status

ETA = 2.0**-149  # least denormal

MODES = [name for name in quant.modes() if name != "fp32"]  # tests/test_kernels_linear.py
#: One mode of each way to decode; a mode more is only other numbers in the same kernel.
KINDS = ("bf16", "q4_1", "q6_k", "w4-g32", "w4-g32z", "w8a8")
#: Every mode on the target that runs natively everywhere; on the others one of each kind, since all give the same bits.
PAIRS = [(target, mode) for target in TARGETS for mode in MODES if target == "x86_64-avx2" or mode in KINDS]
#: What the first weights of a block of 32 must be so that the mode's scale is 1 and small integers are exact.
EXTREMES = {
    "q4_0": (-8,),
    "q4_1": (-7, 8),
    "q8_0": (127,),
    "w8": (127,),
    "w8a8": (127,),
    "w4-g32": (7,),
    "w4-g128": (7,),
    "w4-g32z": (-7, 8),
    "w4-g128z": (-7, 8),
}
#: Scales of modes that would not choose 1 themselves.
OWN_SCALES = {
    "q4_k": {"scale": 1, "minima_scale": 1, "scales": 2, "minima": 9},
    "q6_k": {"scale": 1, "scales": -1},
}


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def machine(pair: tuple[str, str]) -> KernelBench:
    return bench(pair[0])


@pytest.fixture
def mode(pair: tuple[str, str]) -> QuantMode:
    return quant.get(pair[1])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-7, 8, shape).astype(np.float32)


def exact_weight(mode: QuantMode, outputs: int, inputs: int) -> Quantised:
    """Weights that are small integers."""
    w = integers(outputs, inputs)
    for place, extreme in enumerate(EXTREMES.get(mode.name, ())):
        w[:, place::32] = extreme
    weight = mode.quantise(torch.from_numpy(w))
    if mode.name not in OWN_SCALES:
        assert (mode.dequantise(weight).numpy() == w).all()
        return weight
    parts = {name: torch.full_like(part, OWN_SCALES[mode.name].get(name, 0)) for name, part in weight.parts.items()}
    return Quantised(
        weight.shape, parts | {name: weight.parts[name] for name in ("codes", "low", "high") if name in parts}
    )


def packed(mode: QuantMode, w: np.ndarray | Quantised, target: targets.Target) -> list[np.ndarray]:
    weight = w if isinstance(w, Quantised) else mode.quantise(torch.from_numpy(w))
    made = mode.pack(weight, target)
    return [made[piece.name].numpy() for piece in mode.tensors(*weight.shape, target)]


def multiplied(
    machine: KernelBench, mode: QuantMode, x: np.ndarray, weight: list[np.ndarray], *rest: np.ndarray, threads: int = 1
) -> np.ndarray:
    """x times a packed weight; ``rest`` is the bias, if any, and y to start from."""
    rows: list[np.ndarray] = [x]
    if mode.activations is not None:
        pieces = mode.activations.pieces(x.shape[1])
        outs = [poison(len(x), *sizes, dtype={"i8": "int8", "f32": "float32"}[kind]) for kind, sizes in pieces]
        rows = list(machine.run_all(mode.activations.build(machine.target), x, *outs, threads=threads).values())
    return machine.run(mode.build_linear(machine.target, len(rest) > 1), *rows, *weight, *rest, threads=threads)


def seen(mode: QuantMode, x: np.ndarray) -> np.ndarray:
    """x as the mode computes with it, in f64."""
    return x.astype(np.float64) if mode.activations is None else mode.activations.rounded(torch.from_numpy(x)).numpy()


def dequantised(mode: QuantMode, w: np.ndarray | Quantised) -> np.ndarray:
    return mode.dequantise(w if isinstance(w, Quantised) else mode.quantise(torch.from_numpy(w))).numpy()


def bound(mode: QuantMode, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The matrix product's, plus one rounding of each weight for modes that round it to f32. Exact sums are scaled
    twice and a bias is added: three roundings."""
    if mode.activations is not None:
        return 3 * U32 * np.abs(y) + 2 * ETA
    contraction = np.abs(x).astype(np.float64) @ np.abs(w).T
    return U32 * np.abs(y) + (4 * np.sqrt(x.shape[1]) + 1) * U32 * contraction


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_linear_is_exact_on_small_integers(machine: KernelBench, mode: QuantMode, has_bias: bool) -> None:
    width = panel_of(machine.target).width
    sizes = [(1, width - 1, 96), (1, 3 * width + 1, 64), (3, width + 1, 160), (29, 2 * width, 128), (0, 3, 32)]
    for rows, outputs, inputs in sizes:
        x, w, bias = integers(rows, inputs), exact_weight(mode, outputs, inputs), integers(outputs)
        if mode.activations is not None:
            x[:, 0] = 127  # the scale of a row is 1
        extra = (bias,) if has_bias else ()
        y = poison(rows, outputs + 1)[:, :outputs]
        y = multiplied(machine, mode, x, packed(mode, w, machine.target), *extra, y, threads=3)
        assert (y == x @ dequantised(mode, w).T + (bias if has_bias else 0)).all(), (rows, outputs, inputs)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("inputs", [0, 1, 40, 129, 300])
def test_linear_is_within_its_bound(machine: KernelBench, mode: QuantMode, rows: int, inputs: int) -> None:
    x, w = normal(rows, inputs), normal(21, inputs, seed=1)
    y = multiplied(machine, mode, x, packed(mode, w, machine.target), poison(rows, 21))
    golden = seen(mode, x) @ dequantised(mode, w).T
    assert_within(y, golden, bound(mode, x, dequantised(mode, w), golden))


def test_a_row_does_not_depend_on_how_many_there_are(machine: KernelBench, mode: QuantMode) -> None:
    x, w = normal(33, 140), packed(mode, normal(40, 140), machine.target)
    together = multiplied(machine, mode, x, w, poison(33, 40), threads=2)
    for row in (0, 13, 32):
        alone = multiplied(machine, mode, x[row : row + 1], w, poison(1, 40))
        assert alone.tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("name", MODES)
def test_all_targets_agree_to_the_bit(name: str, rows: int) -> None:
    mode = quant.get(name)
    x, w, bias = normal(rows, 150), normal(70, 150), normal(70)
    answers = {}
    for place in TARGETS:
        target = targets.get(place)
        if status(target, isolated=True).runs:
            weight = packed(mode, w, target)
            for threads in (1, 3):
                y = multiplied(bench(place), mode, x, weight, bias, poison(rows, 70), threads=threads)
                answers[place, threads] = y.tobytes()
    assert len(set(answers.values())) == 1, [key for key, y in answers.items() if y != next(iter(answers.values()))]


@pytest.mark.parametrize("size", [1e-38, 1e25, 1e34])
def test_inputs_near_the_ends_of_the_range_stay_finite(machine: KernelBench, mode: QuantMode, size: float) -> None:
    """The way a row is computed must not overflow, or lose small numbers, where the result would not."""
    x = np.full((1, 64), size, np.float32)
    w = np.zeros((3, 64), np.float32)
    w[:, 0] = (1, 0.5, -1)
    y = multiplied(machine, mode, x, packed(mode, w, machine.target), poison(1, 3))
    golden = seen(mode, x) @ dequantised(mode, w).T
    assert_within(y, golden, bound(mode, x, dequantised(mode, w), golden))


def test_special_values_pass_through(machine: KernelBench, mode: QuantMode) -> None:
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 5], x[2, 5] = np.nan, np.inf, -np.inf
    w = np.abs(integers(3, 64)) + 1
    for rows in (slice(0, 1), slice(1, 2), slice(0, 3)):
        y = multiplied(machine, mode, x[rows], packed(mode, w, machine.target), poison(len(x[rows]), 3))
        found = [np.nan] * 3 if mode.activations is not None else [np.nan, np.inf, -np.inf]
        want = np.repeat(np.array(found, np.float32)[rows], 3).reshape(-1, 3)
        np.testing.assert_array_equal(y, want)


def test_the_embedding_reads_the_packed_table(machine: KernelBench, mode: QuantMode) -> None:
    width = panel_of(machine.target).width
    table = normal(40, 100)
    ids = np.array([0, 39, width, width - 1, -1, 10**6])
    arguments = (ids, *packed(mode, table, machine.target), poison(6, 100))
    y = machine.run(mode.build_embedding(machine.target), *arguments, threads=2)
    assert_within(y[:4], dequantised(mode, table)[ids[:4]], U32 * np.abs(dequantised(mode, table)[ids[:4]]))
    assert np.isnan(y[4:]).all()
