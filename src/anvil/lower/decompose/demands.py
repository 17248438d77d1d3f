"""What a written-out op demands of the sizes of its operands, where its own form would take any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anvil.errors import RefusedError
from anvil.graph import data_ops as _ops  # noqa: F401 (registers anvil::sized)
from anvil.graph.rewrite import same_size

DECOMPOSITIONS: dict[object, object] = {}


def of_shape(x: Tensor, shape: Sequence[int], name: str) -> Tensor:
    """``x``; another rank than that of ``shape`` is refused, other sizes end the run with an error."""
    if x.ndim != len(shape):
        raise RefusedError(f"{name} has rank {x.ndim}, expected {len(shape)}")
    for dim, (own, want) in enumerate(zip(x.shape, shape, strict=True)):
        if not same_size(own, want):
            said = f"{name} has another size in dimension {dim} than what it is put into, expected an equal one"
            x = torch.ops.anvil.sized(torch.ops.anvil.sized(x, own - want, said), want - own, said)
    return x


def not_empty(x: Tensor, name: str) -> Tensor:
    """``x``; no element at all ends the run with an error."""
    return torch.ops.anvil.sized(x, x.numel() - 1, f"{name} is empty, expected at least one element")
