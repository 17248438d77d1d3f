"""Distances and angles between vectors, and sums of table rows by bag."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anvil.errors import RefusedError
from anvil.graph import data_ops as _ops  # noqa: F401 (registers anvil::checked)
from anvil.lower.decompose.normalising import wide_type

aten = torch.ops.aten


def _norm(difference: Tensor, p: float) -> Tensor:
    """The p-norm along the last dimension; the number of differences for p = 0, the largest for infinite p."""
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    if p == float("inf"):  # of nothing it is 0, which amax alone refuses
        return torch.cat([size, size.new_zeros([*size.shape[:-1], 1])], -1).amax(-1)
    return size.pow(p).sum(-1).pow(1.0 / p)


def _cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    """Every row of x [.., P, M] against every row of y [.., R, M]."""
    return _norm(x.unsqueeze(-2) - y.unsqueeze(-3), p)


def _pdist(x: Tensor, p: float = 2) -> Any:
    """Every row of x [N, M] against every later one."""
    if x.ndim != 2:
        raise RefusedError(f"writing out pdist: x has rank {x.ndim}, expected 2")
    if not isinstance(x.shape[0], int):
        return NotImplemented
    pairs = [(i, j) for i in range(x.shape[0]) for j in range(i + 1, x.shape[0])]
    if not pairs:
        return x.new_zeros([0])
    rows = [torch.cat([x.narrow(0, pair[side], 1) for pair in pairs]) for side in (0, 1)]
    return _norm(rows[0] - rows[1], p)


def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x · y over the product of their lengths, each at least eps."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = (tensor.to(wide_type(dtype)) for tensor in torch.broadcast_tensors(x, y))
    lengths = [(tensor * tensor).sum(dim, keepdim=True).sqrt().clamp(min=eps) for tensor in (x, y)]
    return ((x / lengths[0]) * (y / lengths[1])).sum(dim).to(dtype)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums (mode 0) or means (1) of the rows that each bag names. Bag b holds the places from offsets[b] up to the
    next offset; the rows of a place are weighed by whether they belong to the bag."""
    if mode not in (0, 1):
        return NotImplemented
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    offsets = _ascending(offsets, indices.shape[0])
    place = torch.arange(indices.shape[0])
    bag = (place[:, None] >= offsets[None, :bags]).to(torch.int64).sum(1) - 1
    member = (bag[None, :] == torch.arange(bags)[:, None]) & (indices != padding_idx)[None, :]
    rows = aten.embedding.default(weight, indices.clamp(min=0)).to(wide_type(weight.dtype))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None].to(rows.dtype)
    total = torch.where(member[:, :, None], rows[None], 0).sum(1)
    counts = member.to(torch.int64).sum(1)
    if mode == 1:
        total = total / counts.clamp(min=1)[:, None].to(total.dtype)
    empty = indices.new_zeros([0 if mode == 0 else bags])
    return total.to(weight.dtype), bag, counts if mode == 1 else empty, empty


def _ascending(offsets: Tensor, count: int) -> Tensor:
    """The offsets; what does not begin with 0, falls, or is beyond the ``count`` indices ends the run with an error."""
    first = torch.arange(offsets.shape[0]) == 0
    before = torch.where(first, 0, offsets.roll(1, 0))
    wrong = (offsets < before) | (offsets > count) | (first & (offsets != 0))
    said = "an offset of a bag is wrong, expected the first to be 0, none below the one before, none above the indices"
    return torch.ops.anvil.checked(offsets, wrong, said)


DECOMPOSITIONS = {
    aten._cdist_forward.default: _cdist,
    aten._pdist_forward.default: _pdist,
    aten.cosine_similarity.default: _cosine_similarity,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
}
