"""One region on every target: the same bits."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

from anvil import targets
from anvil.runtime import status

ALL = [target.name for target in targets.quick_targets()]
REFERENCE = "x86_64-avx2"


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


@pytest.mark.parametrize("target", [name for name in ALL if name != REFERENCE])
def test_all_targets_agree_to_the_bit(target, reference):
    state = status(targets.get(target))
    if not state.runs:
        pytest.skip(f"{target}: {state.reason}")
    lowered = compiled(function, *inputs(2, 3), dynamic=DYNAMIC, target=target)
    for sizes, wanted in reference.items():
        for got, want in zip(lowered(*inputs(*sizes)), wanted, strict=True):
            assert got.equal(want), sizes
