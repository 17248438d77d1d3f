"""Normalisation by statistics of a batch, a group or a row. Statistics are held in f32 for f16 and bf16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anvil.lower.decompose.demands import not_empty

aten = torch.ops.aten


def wide_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _normed(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) · rstd, mean and rstd in the wide type, over ``dims``, which stay with size 1. The mean is subtracted
    before squares are taken: E[x²] - E[x]² cancels where the mean is large."""
    wide = x.to(wide_type(x.dtype))
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    rstd = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    return centred * rstd, mean, rstd


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Tensor:
    """x · weight + bias, both seen in ``shape``."""
    if weight is not None:
        x = x * weight.to(x.dtype).view(shape)
    return x if bias is None else x + bias.to(x.dtype).view(shape)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.ndim - len(shape), x.ndim))
    normed, mean, rstd = _normed(x, dims, eps)
    return _affine(normed, weight, bias, shape).to(x.dtype), mean, rstd


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Without eps that of the type sums are held in."""
    wide = x.to(wide_type(x.dtype))
    dims = list(range(x.ndim - len(shape), x.ndim))
    small = torch.finfo(wide.dtype).eps if eps is None else eps
    return _affine(wide * torch.rsqrt((wide * wide).mean(dims, keepdim=True) + small), weight, None, shape).to(x.dtype)


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, area: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Every group of channels of every sample: x [N, C, *]."""
    normed, mean, rstd = _normed(x.reshape([batch, groups, channels // groups, area]), [2, 3], eps)
    result = _affine(normed.reshape(x.shape), weight, bias, _per_channel(x)).to(x.dtype)
    return result, mean.reshape([batch, groups]).to(x.dtype), rstd.reshape([batch, groups]).to(x.dtype)


def _per_channel(x: Tensor) -> list[int]:
    return [1, x.shape[1], *[1] * (x.ndim - 2)]


def _batch_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Given statistics, one per channel; there are none to return."""
    wide, shape = torch.promote_types(wide_type(x.dtype), mean.dtype), _per_channel(x)
    rstd = torch.rsqrt(variance.to(wide) + eps).view(shape)
    result = _affine((x.to(wide) - mean.to(wide).view(shape)) * rstd, weight, bias, shape)
    return result.to(x.dtype), x.new_empty([0], dtype=wide), x.new_empty([0], dtype=wide)


def _batch_norm_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    """Statistics of the batch itself, per channel."""
    dims = [dim for dim in range(x.ndim) if dim != 1]
    normed, mean, rstd = _normed(not_empty(x, "the batch"), dims, eps)
    return _affine(normed, weight, bias, _per_channel(x)).to(x.dtype), mean.reshape([-1]), rstd.reshape([-1])


DECOMPOSITIONS = {
    aten.native_layer_norm.default: _layer_norm,
    aten.rms_norm.default: _rms_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_inference,
    aten._native_batch_norm_legit.no_stats: _batch_norm_batch,
}
