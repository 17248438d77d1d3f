"""Tensors as bytes, whatever their strides."""

from __future__ import annotations

import pytest
import torch

from anvil import codegen, targets
from anvil.kernels import rms_norm
from anvil.runtime.memory import Memory, as_bytes
from anvil.runtime.native import NativeExecutor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[3:].reshape(3, 3),
        torch.arange(12.0)[5::7].reshape(1, 1),
        torch.arange(12.0)[::12],
        torch.arange(6.0).reshape(6, 1).expand(6, 2),
        torch.tensor(7, dtype=torch.int64),
        torch.empty(0, 3),
    ],
    ids=lambda tensor: f"{list(tensor.shape)}-{tensor.stride()}",
)
def test_bytes_are_the_elements_in_row_major_order(tensor: torch.Tensor) -> None:
    assert bytes(as_bytes(tensor)) == tensor.contiguous().numpy().tobytes()


def test_constants_of_this_process_lie_side_by_side() -> None:
    target = targets.get("x86_64-avx2")
    executor = NativeExecutor()
    memory = Memory(executor, codegen.compile_library([rms_norm.build(target)], target))
    weights = {f"w{n}": torch.full((n,), float(n)) for n in (100, 3, 1000, 0, 16)}
    places = {
        name: memory.constant(name, lambda weight=weight: weight.view(torch.uint8).numpy())
        for name, weight in weights.items()
    }
    assert all(address % 64 == 0 for address in places.values())
    assert max(places.values()) - min(places.values()) < 8192
    for name, weight in weights.items():
        assert executor.read(places[name], 4 * weight.numel()) == weight.numpy().tobytes(), name
    executor.close()
