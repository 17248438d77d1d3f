"""Indexing, views and pieces of language models with known right values: rows of docs/known-inputs.md."""

from __future__ import annotations

from math import cos, inf, nan, sin

import torch
import torch.nn.functional as F
from known_row import Row, t

i64, f32 = torch.int64, torch.float32

CONSTANT = t([[1, 2, 3], [4, 5, 6]], i64)


def folded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Picks from a constant, which may be folded when the program is compiled."""
    table = torch.tensor([[1, 2, 3], [4, 5, 6]])
    return table.select(0, -1) + x, table.select(1, -2) + x[:2], table[-1][-1] + x[0]


def picked(table: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return table.select(0, -1) + 0, table.select(1, -2) + 0, table[-1][-1] + 0


def strided(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x.t().as_strided((2, 2), (1, 4)) + 0,
        x[1:].as_strided((2, 2), (4, 1)) + 0,
        x[1:].as_strided((2, 2), (4, 1), 5) + 0,
        x[:, ::2].clone().as_strided((2, 2), (2, 1)) + 0,
        (x[:, ::2] * 1).as_strided((2, 2), (2, 1)) + 0,
    )


def routed(scores: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.sigmoid(scores)
    chosen = (weights + bias).topk(2).indices.sort().values
    kept = weights.gather(-1, chosen)
    return chosen, kept / kept.sum(-1, keepdim=True)


def grouped(scores: torch.Tensor) -> torch.Tensor:
    groups = scores.reshape(3, 2)
    best = groups.sum(-1).topk(2).indices
    keep = (torch.arange(3)[:, None] == best).any(-1)
    return groups.masked_fill(~keep[:, None], -inf).reshape(-1).topk(2).indices.sort().values


def entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


def neighbours(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Rotary pairs (0, 1), (2, 3)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(-2)


LOGITS = ((3 * torch.arange(5)[:, None] + 2 * torch.arange(7)) % 7).float()
ANGLES = t([cos(1), cos(0.01)]), t([sin(1), sin(0.01)])
X = torch.arange(12.0).reshape(3, 4)
SIX = torch.arange(6.0).reshape(2, 3)

LAYOUTS = [
    Row(
        50,
        "negative indices",
        lambda x, i, j: (x[:, i], x[j]),
        (SIX, t([-1], i64), t([-1, 0], i64)),
        (t([[2], [5]]), t([[3, 4, 5], [0, 1, 2]])),
        0,
        ("MN", "I", "J"),
    ),
    Row(52, "select from the end", picked, (CONSTANT,), (t([4, 5, 6], i64), t([2, 5], i64), t(6, i64)), 0, ("..",)),
    Row(
        52,
        "select from the end of a constant",
        folded,
        (torch.zeros(3, dtype=i64),),
        (t([4, 5, 6], i64), t([2, 5], i64), t(6, i64)),
    ),
    Row(
        53,
        "a view of one more dimension keeps the order",
        lambda x: x.view(1, *x.shape) * 1,
        (torch.arange(32.0).reshape(4, 8),),
        (torch.arange(32.0).reshape(1, 4, 8),),
        0,
        ("MN",),
    ),
    Row(
        54,
        "as_strided of a transposed tensor, a slice, a slice with an offset, and of copies that lie otherwise",
        strided,
        (X,),
        (t([[0, 4], [1, 5]]), t([[8, 9], [12, 13]]) - 4, t([[5, 6], [9, 10]]), *2 * [t([[0, 2], [4, 6]])]),
    ),
    Row(
        57,
        "router: the bias chooses and does not weigh",
        routed,
        (t([0, 1, 2, -1]), t([0.6, 0, -0.5, 0.7])),
        (t([0, 3], i64), t([0.6503, 0.3497])),
        2e-4,
    ),
    Row(
        58,
        "router: a removed group cannot win",
        grouped,
        (t([-3, -1, -9, -8, -2, -5]),),
        (t([1, 4], i64),),
    ),
    Row(
        59,
        "cross-entropy leaves ignored labels out",
        entropy,
        (LOGITS, t([-100, 2, -100, 6, 0], i64)),
        (t(4.791096),),
        2e-7,
        ("NV", "N"),
    ),
    Row(
        59,
        "cross-entropy of nothing is NaN",
        entropy,
        (LOGITS, t([-100] * 5, i64)),
        (t(nan),),
        0,
        ("NV", "N"),
    ),
    Row(
        61,
        "groups are repeated in place",
        lambda b: b[:, None].expand(-1, 3).reshape(-1),
        (t([10, 20]),),
        (t([10, 10, 10, 20, 20, 20]),),
        0,
        ("G",),
    ),
    Row(
        61,
        "groups are repeated in place by repeat_interleave",
        lambda b: b.repeat_interleave(3, 0),
        (t([10, 20]),),
        (t([10, 10, 10, 20, 20, 20]),),
        0,
        ("G",),
    ),
    Row(
        64,
        "rotary pairs of neighbours",
        neighbours,
        (t([[1, 2, 3, 4]]), *ANGLES),
        (t([[-1.14264, 1.92208, 2.95985, 4.02980]]),),
        3e-6,
        ("N.", ".", "."),
        ("N", "N."),
    ),
]
