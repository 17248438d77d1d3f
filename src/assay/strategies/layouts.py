"""Memory layouts: the same numbers, lying differently. Gaps hold NaN (or a huge index), so reading one shows."""

from __future__ import annotations

from collections.abc import Callable

import torch


def contiguous(x: torch.Tensor) -> torch.Tensor:
    return x


def offset(x: torch.Tensor) -> torch.Tensor:
    """Starts at the third element of its storage: aligned to nothing but the element."""
    return gap(x.numel() + 3, x)[3:].view(x.shape).copy_(x)


def strided(x: torch.Tensor) -> torch.Tensor:
    """Rows with a gap of five elements between them."""
    if x.dim() == 0:
        return x
    return gap((*x.shape[:-1], x.shape[-1] + 5), x)[..., : x.shape[-1]].copy_(x)


def stepped(x: torch.Tensor) -> torch.Tensor:
    """Every second element of the last axis."""
    if x.dim() == 0:
        return x
    return gap((*x.shape[:-1], x.shape[-1] * 2), x)[..., ::2].copy_(x)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Last two axes swapped in memory (column-major)."""
    if x.dim() < 2:
        return stepped(x)
    return torch.empty_like(x.transpose(-1, -2), memory_format=torch.contiguous_format).transpose(-1, -2).copy_(x)


def heads_inside(x: torch.Tensor) -> torch.Tensor:
    """Axes 1 and 2 swapped in memory: [B, H, S, D] as a projection leaves it, [B, S, H, D]."""
    if x.dim() < 3:
        return offset(x)
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def expanded(x: torch.Tensor) -> torch.Tensor:
    """First axis repeated with stride 0. Changes the numbers: every entry becomes the first."""
    if x.dim() < 2 or x.shape[0] == 0:
        return x
    return x[:1].expand(x.shape)


def gap(shape: int | tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Memory nobody may read: NaN, an index far out of range, or True."""
    if like.dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    filler = float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).max // 2
    return torch.full((shape,) if isinstance(shape, int) else shape, filler, dtype=like.dtype)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    layout.__name__: layout for layout in (contiguous, offset, strided, stepped, transposed, heads_inside, expanded)
}
NAMES = tuple(LAYOUTS)
