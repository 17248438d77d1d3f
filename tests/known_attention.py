"""Attention, caches and norms with known right values: the rows of docs/known-inputs.md that `ops/` does not hold."""

from __future__ import annotations

from math import inf, nan

import torch
import torch.nn.functional as F
from known_row import Row, t, wave

from anvil.graph import ops as _ops  # noqa: F401 (registers anvil::*)

i64, f16, bf16 = torch.int64, torch.float16, torch.bfloat16


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


Q, K, V = wave(1, 1, 2, 4), wave(1, 1, 3, 4) + 1, wave(1, 1, 3, 4) - 2
ORDINARY = ((Q.double() @ K.double().mT / 2).softmax(-1) @ V.double())[:, :, :1]
BLIND = torch.cat([ORDINARY, torch.zeros(1, 1, 1, 4)], 2).float()
HIDDEN = t([[True] * 3, [False] * 3], torch.bool)


def within(queries: torch.Tensor, keys: torch.Tensor, window: int) -> torch.Tensor:
    """Which keys are seen through a window that counts the query's own position."""
    return (keys[None, :] <= queries[:, None]) & (keys[None, :] > queries[:, None] - window)


def window_mask(x: torch.Tensor) -> torch.Tensor:
    position = torch.arange(x.shape[0])
    return within(position, position, 4)


SEEN = t([[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0],
          [0, 0, 1, 1, 1, 1]])  # fmt: skip
MEAN = SEEN / SEEN.sum(-1, keepdim=True)


def sliding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    return torch.ops.anvil.attention_cached(q, k, v, past, 0.5, 8, None)


def windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attend(q, k, v, window_mask(q[0, 0]))


def last_alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    return torch.ops.anvil.attention_cached(q, k, v, past, 0.5, 4, None)


def alternating(value: float, size: int, dtype: torch.dtype) -> torch.Tensor:
    return (value * (1 - 2 * (torch.arange(size) % 2).float())).to(dtype)[None]


def normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm as language models write it: computed in f32, rounded once."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


SPIKE = torch.full((2, 64), 0.01)
SPIKE[0, 5], SPIKE[1] = 1e3, 0
CENTRED = SPIKE.double() - SPIKE.double().mean(-1, keepdim=True)
LAYER_NORMED = (CENTRED / (CENTRED.square().mean(-1, keepdim=True) + 1e-5).sqrt()).float()
FULL_WINDOW = [
    t([[[[float(lo <= j <= hi) / (hi - lo + 1) for j in range(10)]]]]) for lo, hi in ((0, 6), (0, 7), (1, 8), (2, 9))
]

SMALL, TINY = alternating(0.058, 32, bf16), alternating(0.01414, 64, f16)
NORMS = [
    (47, "bf16 RMSNorm of small values written out", lambda x: normed(x, 1e-6), SMALL),
    (47, "bf16 RMSNorm of small values", lambda x: F.rms_norm(x, (32,), eps=1e-6), SMALL),
    (47, "bf16 RMSNorm, eps of the computing type", lambda x: F.rms_norm(x, (32,)), SMALL),
    (49, "f16 RMSNorm written out, eps below f16's precision", lambda x: normed(x, 1e-6), TINY),
    (49, "f16 RMSNorm, eps below f16's precision", lambda x: F.rms_norm(x, (64,), eps=1e-6), TINY),
]
RIGHT = {47: alternating(1, 32, bf16), 49: alternating(0.9976, 64, f16)}

ATTENTION = [
    *(
        Row(number, title, program, (x,), (RIGHT[number],), 0, ("N.",), ("N", "N."))
        for number, title, program, x in NORMS
    ),
    Row(
        1,
        "a row whose bool mask hides all is zero",
        attend,
        (Q, K, V, HIDDEN),
        (BLIND,),
        1e-6,
        ("B.S.", "B.T.", "B.T.", "ST"),
        ("B", "B..."),
    ),
    Row(
        2,
        "a query whose own key is outside the window, bool mask",
        attend,
        (wave(1, 1, 1, 4), wave(1, 1, 2, 4), wave(1, 1, 2, 4), t([[False, False]], torch.bool)),
        (torch.zeros(1, 1, 1, 4),),
        0,
        ("B.S.", "B.T.", "B.T.", "ST"),
        ("B", "B..."),
    ),
    Row(
        2,
        "a query whose own key is outside the window, float mask",
        attend,
        (wave(1, 1, 1, 4), wave(1, 1, 2, 4), wave(1, 1, 2, 4), t([[-inf, -inf]])),
        (torch.zeros(1, 1, 1, 4),),
        0,
        ("B.S.", "B.T.", "B.T.", "ST"),
        ("B", "B..."),
    ),
    Row(
        2,
        "softmax over nothing but -Inf stays NaN",
        lambda x: x.softmax(-1),
        (t([[-inf, -inf]]),),
        (t([[nan, nan]]),),
        0,
        ("MN",),
        ("M", "M."),
    ),
    Row(
        10,
        "scores beyond f16",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        (torch.full((1, 1, 2, 128), 64.0, dtype=f16),) * 2
        + (torch.stack([torch.ones(128), torch.full((128,), 3.0)]).to(f16)[None, None],),
        (torch.full((1, 1, 2, 128), 2.0, dtype=f16),),
        0,
        ("B.S.", "B.T.", "B.T."),
        ("B", "B..."),
    ),
    *(
        Row(
            11,
            f"window of 8 at position {6 + step}",
            sliding,
            (torch.zeros(1, 1, 1, 10), torch.zeros(1, 1, 10, 10), torch.eye(10)[None, None], t([6 + step], i64)),
            (right,),
            2e-6,
            ("B.S.", "B.T.", "B.T.", "B"),
            ("B", "B..."),
        )
        for step, right in enumerate(FULL_WINDOW)
    ),
    Row(12, "window of 4, the mask", window_mask, (torch.zeros(6),), (SEEN.bool(),), 0, ("N",)),
    Row(
        12,
        "window of 4, the result",
        windowed,
        (torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 6, 6), torch.eye(6)[None, None]),
        (MEAN[None, None],),
        2e-6,
        ("B.S.", "B.S.", "B.S."),
    ),
    Row(
        12,
        "window of 4, the last row alone",
        last_alone,
        (torch.zeros(1, 1, 1, 6), torch.zeros(1, 1, 6, 6), torch.eye(6)[None, None], t([5], i64)),
        (MEAN[None, None, 5:],),
        2e-6,
        ("B.S.", "B.T.", "B.T.", "B"),
        ("B", "B..."),
    ),
    Row(
        48,
        "LayerNorm of one spike and of a zero row",
        lambda x: F.layer_norm(x, (64,), eps=1e-5),
        (SPIKE,),
        (LAYER_NORMED,),
        2e-6,
        ("N.",),
        ("N", "N."),
    ),
    Row(
        63,
        "a soft cap before the mask",
        lambda s, m: (20 * torch.tanh(s / 20) + m).softmax(-1),
        (t([[40, 10, 30]]), t([[0, -inf, 0]])),
        (t([[0.7645, 0, 0.2355]]),),
        1e-4,
        ("MN", ".N"),
        ("M", "M."),
    ),
]
