"""Tensors as bytes, whatever their strides."""

from __future__ import annotations

import pytest
import torch

from anvil.runtime.memory import as_bytes


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
