"""Operations that are taken apart into others before anything else sees them, by PyTorch's own definitions.

Adding one is adding its name here, if what its definition consists of has lowerings. One that is worth a loop nest of
its own has an entry in ``anvil.lower.generic.ops`` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._export.utils import _get_decomp_for_cia

aten = torch.ops.aten


def _definition(op: Any) -> Callable[..., Any]:
    """PyTorch's own: from its table, or what a composite operation calls."""
    return decomposition_table.get(op) or _get_decomp_for_cia(op)


DECOMPOSED: dict[Any, Callable[..., Any]] = {op: _definition(op) for op in (aten.einsum.default,)}
