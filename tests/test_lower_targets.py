"""One region on every target: the same bits."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

from anvil import targets
from anvil.runtime import status

ALL = [target.name for target in targets.quick_targets()]
REFERENCE = "x86_64-avx2"
MOVES = (torch.bitwise_left_shift, torch.bitwise_right_shift)


def function(x, y, scale):
    h = (x + y.to(torch.float32)) * scale
    weights = torch.softmax(torch.sin(h) * 3, -1)
    return weights, (weights * h).sum(-1), h.to(torch.bfloat16), (h > 0) & (y > 0), h.argmax(-1), h.amax(1)


def inputs(b, s):
    generator = torch.Generator().manual_seed(b + s)
    x = torch.randn(b, s, generator=generator) * 4
    y = torch.randn(b, s, generator=generator).half()
    return x, y, torch.randn(s, generator=generator)


DYNAMIC = ({0: "B", 1: "S"}, {0: "B", 1: "S"}, {0: "S"})


@pytest.fixture(scope="module")
def reference():
    lowered = compiled(function, *inputs(2, 3), dynamic=DYNAMIC, target=REFERENCE)
    return {(b, s): lowered(*inputs(b, s)) for b, s in ((1, 1), (3, 16), (2, 33), (5, 7))}


def shifts(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and counts at every edge: around the width, negative, beyond it in the high bits alone."""
    info = torch.iinfo(dtype)
    numbers = {info.min, info.min + 1, -5, -1, 0, 1, 5, info.max}
    near = {0, 1, info.bits - 2, info.bits - 1, info.bits, info.bits + 1, 2 * info.bits}
    far = {info.max, -1, -info.bits, info.min, info.min + 1, 256, 65536, (1 << 32) + 1, -(1 << 32)}
    pairs = torch.tensor([(x, count) for x in sorted(numbers) for count in sorted(near | far)])
    kept = pairs[((pairs >= info.min) & (pairs <= info.max)).all(1)].to(dtype)
    return kept[:, 0].contiguous(), kept[:, 1].contiguous()


@pytest.mark.parametrize("target", ALL)
def test_bits_are_moved_by_any_count(target):
    state = status(targets.get(target))
    if not state.runs:
        pytest.skip(f"{target}: {state.reason}")
    pairs = [shifts(dtype) for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)]

    def shifted(*inputs):
        return tuple(move(x, y) for x, y in zip(inputs[::2], inputs[1::2], strict=True) for move in MOVES)

    flat = [tensor for pair in pairs for tensor in pair]
    dynamic = [{0: f"N{position // 2}"} for position in range(len(flat))]
    results = compiled(shifted, *flat, dynamic=dynamic, target=target)(*flat)
    for got, want in zip(results, shifted(*flat), strict=True):
        assert got.equal(want), got.dtype


@pytest.mark.parametrize("target", [name for name in ALL if name != REFERENCE])
def test_all_targets_agree_to_the_bit(target, reference):
    state = status(targets.get(target))
    if not state.runs:
        pytest.skip(f"{target}: {state.reason}")
    lowered = compiled(function, *inputs(2, 3), dynamic=DYNAMIC, target=target)
    for sizes, wanted in reference.items():
        for got, want in zip(lowered(*inputs(*sizes)), wanted, strict=True):
            assert got.equal(want), sizes
