"""Operations that put elements in places computed at run time, as PyTorch operators beside those of ``ops.py``.

The many scatters and sorts of PyTorch are written out in these, with what such an op demands of its operands.
"""

from __future__ import annotations

import torch

_LIB = torch.library.Library("anvil", "FRAGMENT")
REDUCTIONS = ("set", "sum", "prod", "amax", "amin")

_LIB.define("scatter(Tensor x, Tensor place, Tensor src, str reduce) -> Tensor")
_LIB.define("sort_rows(Tensor x, bool descending) -> (Tensor, Tensor)")
_LIB.define("checked(Tensor x, Tensor wrong, str message) -> Tensor")
_LIB.define("sized(Tensor x, SymInt size, str message) -> Tensor")


def scatter(x: torch.Tensor, place: torch.Tensor, src: torch.Tensor, reduce: str) -> torch.Tensor:
    """``x`` with every element of ``src`` combined with the one at its place, in order.

    ``place`` counts elements of ``x`` in row-major order, -1 for those that are left out. Raises ``IndexError`` for any
    other place that does not exist. ``set`` replaces, the last one of several for a place wins; sum, prod, amax and
    amin combine with what is there, a NaN stays.
    """
    if place.numel() and (place.min() < -1 or place.max() >= x.numel()):
        raise IndexError(f"scatter: an index is out of range for x of shape={tuple(x.shape)}")
    flat, chosen = x.reshape(-1).clone(), place.reshape(-1) >= 0
    index, values = place.reshape(-1)[chosen], src.reshape(-1)[chosen]
    if reduce == "set":
        for at, value in zip(index.tolist(), values, strict=True):
            flat[at] = value
    else:
        flat.scatter_reduce_(0, index, values, reduce)
    return flat.reshape(x.shape)


def sort_rows(x: torch.Tensor, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The last dimension in order, equal elements as they stood; NaN counts as larger than everything."""
    values, indices = torch.sort(x, dim=-1, descending=descending, stable=True)
    return values, indices


def checked(x: torch.Tensor, wrong: torch.Tensor, message: str) -> torch.Tensor:
    """``x`` as it is. Raises ``RuntimeError`` with the message if one element of ``wrong`` (bool) is set."""
    if wrong.any():
        raise RuntimeError(message)
    return x.clone()


def sized(x: torch.Tensor, size: int, message: str) -> torch.Tensor:
    """``x`` as it is. Raises ``RuntimeError`` with the message if ``size`` is negative."""
    if size < 0:
        raise RuntimeError(message)
    return x.clone()


def _fake_sort(x: torch.Tensor, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=torch.int64)


_LIB.impl("scatter", scatter, "CompositeExplicitAutograd")
_LIB.impl("sort_rows", sort_rows, "CompositeExplicitAutograd")
_LIB.impl("checked", checked, "CompositeExplicitAutograd")
_LIB.impl("sized", sized, "CompositeExplicitAutograd")
torch.library.register_fake("anvil::scatter", lambda x, *_: torch.empty(x.shape, dtype=x.dtype), lib=_LIB)
torch.library.register_fake("anvil::sort_rows", _fake_sort, lib=_LIB)
for name in ("checked", "sized"):
    torch.library.register_fake(f"anvil::{name}", lambda x, *_: torch.empty_like(x), lib=_LIB)
