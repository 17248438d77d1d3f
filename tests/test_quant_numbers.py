"""What each quantisation mode does to numbers, and that packing loses none of it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from anvil import quant, targets
from anvil.errors import InputError
from anvil.quant import QuantMode
from anvil.runtime.memory import as_bytes

MODES = list(quant.modes())
BLOCKS = [name for name in MODES if name not in ("fp32", "fp16", "bf16")]
TARGET = targets.get("x86_64-avx2")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> QuantMode:
    return quant.get(request.param)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def through(name: str, w: list[float] | torch.Tensor) -> torch.Tensor:
    """w, one output, quantised and dequantised."""
    mode = quant.get(name)
    return mode.dequantise(mode.quantise(torch.as_tensor(w).reshape(1, -1)))[0]


def codes(name: str, w: list[float] | torch.Tensor) -> list[int]:
    return quant.get(name).quantise(torch.as_tensor(w).reshape(1, -1)).parts["codes"].flatten().tolist()[: len(w)]


@pytest.mark.parametrize("target", targets.quick_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("outputs", [1, 16, 33])
@pytest.mark.parametrize("inputs", [0, 1, 32, 40, 160])
def test_unpacking_gives_back_every_bit(mode: QuantMode, target: targets.Target, outputs: int, inputs: int) -> None:
    weight = mode.quantise(normal(outputs, inputs))
    packed = mode.pack(weight, target)
    for piece in mode.tensors(outputs, inputs, target):
        assert packed[piece.name].shape == piece.shape
    back = mode.unpack(packed, (outputs, inputs), target)
    assert back.parts.keys() == weight.parts.keys()
    for name, part in weight.parts.items():
        assert bytes(as_bytes(back.parts[name])) == bytes(as_bytes(part)), name
    assert torch.equal(mode.dequantise(back), mode.dequantise(weight))


def test_zero_stays_zero_and_needs_no_scale(mode: QuantMode) -> None:
    assert not mode.dequantise(mode.quantise(torch.zeros(3, 64))).any()


def test_padding_does_not_count(mode: QuantMode) -> None:
    """What lies behind the last input of a row that does not fill its block changes nothing of it."""
    w = normal(4, 64)
    w[:, 40:] = 0
    whole = mode.dequantise(mode.quantise(w))[:, :40]
    assert torch.equal(mode.dequantise(mode.quantise(w[:, :40])), whole)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("value", [1.0, -3.0, 1e-3])
def test_equal_weights_stay_equal(name: str, value: float) -> None:
    got = through(name, torch.full((64,), value))
    assert (got == got[0]).all()
    assert abs(got[0] - value) <= abs(value) * (2.0**-6 if name.endswith("_k") else 2.0**-9)  # scales of few bits


@pytest.mark.parametrize("name", ["w8", "w8a8", "q8_0"])
def test_ties_go_to_even_and_the_extremes_to_127(name: str) -> None:
    w = [127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 3.0]
    assert codes(name, w) == [127, -127, 0, 2, 2, 0, -2, -2, 0, 3]


def test_four_bit_ties_go_to_even_and_saturate() -> None:
    w = [7.0, -7.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    assert through("w4-g32", w).tolist() == [7, -7, 0, 2, 2, 0, -2, -2]
    assert through("q4_0", [-8.0, 7.5, 7.9, 0.5, 1.5]).tolist() == [-8, 7, 7, 0, 2]
    assert through("q4_1", [0.0, 15.0, 0.5, 1.5, 2.5]).tolist() == [0, 15, 0, 2, 2]
    assert through("w4-g32z", [-7.0, 8.0, 0.5, 1.5, -0.5]).tolist() == [-7, 8, 0, 2, 0]


def test_a_zero_point_represents_zero_exactly() -> None:
    w = torch.linspace(0.1, 3, 64)
    w[5] = 0
    assert through("w4-g32z", w)[5] == 0


@pytest.mark.parametrize("name", ["w4-g32", "w4-g128", "w4-g32z", "w4-g128z"])
def test_a_scale_beyond_half_precision_saturates(name: str) -> None:
    assert through(name, torch.full((32,), 1e9)).isfinite().all()


def test_a_number_of_type_is_rounded_once() -> None:
    """INPUTS: 65519 and 65520 are neighbours of the largest half; the step to infinity lies between."""
    assert through("fp16", [0.49990, 65519.0, 65520.0, 6e-8, 2.9e-8]).tolist()[1:] == [65504, np.inf, 2.0**-24, 0]
    assert through("bf16", [1.00390625, 1.01171875]).tolist() == [1.0, 1.015625]


def test_the_order_of_quantising_and_narrowing_is_kept() -> None:
    """Codes of the original and of its bf16 rounding differ: w8 quantises what it is given."""
    w = torch.tensor([0.3, 0.3032, 1.0])
    assert codes("w8", w.tolist()) == [38, 39, 127]
    assert codes("w8", w.bfloat16().float().tolist()) == [38, 38, 127]


def test_a_quotient_by_a_computed_scale_is_a_division() -> None:
    """x / s and x * (1 / s) part at a tie: -2.5 / (5/255 in f32) is -127.49999 and rounds to -127."""
    scale = torch.tensor(5.0) / 255
    w = torch.tensor([127 * scale, -2.5])
    stored = quant.get("w8").quantise(w.reshape(1, -1))
    assert torch.equal(
        stored.parts["codes"].flatten()[:2], (w / stored.parts["scale"].flatten()).round().to(torch.int8)
    )


def test_more_bits_are_closer() -> None:
    w = torch.sin(0.37 * torch.arange(4096)).reshape(1, -1)
    errors = [float((through(name, w) - w.double()).square().mean()) for name in ("w4-g128", "w4-g32", "q8_0", "fp16")]
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == len(errors)


#: Mean squared error over mean square of normal weights, 4096 inputs; a mode must stay within [1/4, 2] of it.
NMSE = {
    "w8": 7.6e-5,
    "w8a8": 7.6e-5,
    "q8_0": 3.2e-5,
    "w4-g32": 9.3e-3,
    "w4-g128": 1.4e-2,
    "w4-g32z": 7.3e-3,
    "w4-g128z": 1.1e-2,
    "q4_0": 7.8e-3,
    "q4_1": 6.5e-3,
    "q4_k": 7.5e-3,
    "q6_k": 6e-4,
    "fp16": 2.8e-8,
    "bf16": 1.8e-6,
}


@pytest.mark.parametrize("name", [name for name in MODES if name != "fp32"])
def test_the_cost_is_in_its_band(name: str) -> None:
    w = normal(64, 4096)
    mode = quant.get(name)
    error = (mode.dequantise(mode.quantise(w)) - w.double()).square().mean() / w.double().square().mean()
    assert NMSE[name] / 4 <= error <= NMSE[name] * 2, float(error)


def test_a_blob_of_another_layout_is_refused() -> None:
    param = quant.get("q4_0").build_linear(TARGET, False).params[1]
    (other,) = quant.get("q4_0").tensors(32, 32, targets.get("x86_64-avx512"))
    assert param.layout == "q4_0.panel16.k32.codes4x32.scale16x1"
    with pytest.raises(InputError, match=r"expects layout='q4_0.panel16.*', got layout='q4_0.panel32"):
        param.check_layout(other.layout)


FILES = [name for name in MODES if quant.get(name).file is not None]


@pytest.mark.parametrize("name", FILES)
def test_blocks_of_a_file_pass_through_to_the_byte_and_mean_what_gguf_says(name: str) -> None:
    """Random bytes, as a file might hold them, against the gguf package's own reading of them."""
    mode = quant.get(name)
    file = mode.file
    assert file is not None
    random = np.random.default_rng(7)
    raw = random.integers(0, 256, (19, 3, file.nbytes), dtype=np.uint8)
    raw[..., _scale_bytes(name)] &= 0xBF  # scales below 2, so that none is infinite or NaN
    shape = (19, 3 * file.size)
    weight = file.read(torch.from_numpy(raw), shape)
    assert file.write(weight).numpy().tobytes() == raw.tobytes()
    for target in targets.quick_targets():
        back = mode.unpack(mode.pack(weight, target), shape, target)
        assert file.write(back).numpy().tobytes() == raw.tobytes()
    want = gguf.quants.dequantize(raw.reshape(19, -1), gguf.GGMLQuantizationType[file.kind])
    got = mode.dequantise(weight)
    assert torch.allclose(got, torch.from_numpy(want).double(), rtol=2.0**-22, atol=1e-6)


def _scale_bytes(name: str) -> list[int]:
    """Where the upper bytes of f16 numbers lie in a block."""
    return {"q4_1": [1, 3], "q4_k": [1, 3], "q6_k": [209]}.get(name, [1])
