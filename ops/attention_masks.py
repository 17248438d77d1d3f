"""attention under masks that are tensors (bool, padding, additive, ALiBi), a soft cap and a window."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from assay import bounds, reference
from assay.formats import BOOL, I64
from assay.metamorphic import THREADS, reversal
from assay.spec import Known, Operand, OpSpec, load
from assay.strategies.shapes import Dims, Shapes, around_tiles, span

attention = load(Path(__file__).with_name("attention.py"))
CAP, WINDOW = 2.0, 4
HEADS = attention.HEADS[:3] + attention.HEADS[5:6]


class Masked(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class Padded(torch.nn.Module):
    """Keys that are padding are hidden from every query of their sequence."""

    def forward(self, q, k, v, kept):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=kept[:, None, None, :], enable_gqa=True)


class Alibi(torch.nn.Module):
    """A penalty per head that grows with the distance to the key; later keys are hidden."""

    def forward(self, q, k, v, slopes):
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        bias = torch.where(distance > 0, -torch.inf, slopes[:, None, None] * distance)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], enable_gqa=True)


class CappedWindow(torch.nn.Module):
    """Over a cache, as Gemma 2 has it: capped scores, the last keys only."""

    def forward(self, q, k, v, past):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = CAP * torch.tanh(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) / CAP)
        position = past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
        key = torch.arange(k.shape[2])
        hidden = (key > position) | (key <= position - WINDOW)
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v


def everything(judged, q: np.ndarray, *rest: np.ndarray, **options: object) -> np.ndarray:
    """A golden or bound of attention without a frontier of its own: all keys, but for the mask."""
    return judged(q, *rest[:-1], np.zeros(len(q), int), mask=rest[-1], causal=False, **options)


def golden_masked(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return everything(reference.attention, q, k, v, mask)


def bound_masked(
    setting: bounds.Setting, want: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """See ``bounds.attention``."""
    return everything(partial(bounds.attention, setting, want), q, k, v, mask)


def golden_padded(q: np.ndarray, k: np.ndarray, v: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return golden_masked(q, k, v, kept[:, None, None])


def bound_padded(
    setting: bounds.Setting, want: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, kept: np.ndarray
) -> np.ndarray:
    """See ``bounds.attention``."""
    return bound_masked(setting, want, q, k, v, kept[:, None, None])


def alibi(slopes: np.ndarray, queries: int, keys: int) -> np.ndarray:
    """[H, S, T]: slope · (key − query), −Inf for later keys."""
    distance = np.arange(keys) - np.arange(queries)[:, None]
    return np.where(distance > 0, -np.inf, slopes[:, None, None] * distance)


def golden_alibi(q: np.ndarray, k: np.ndarray, v: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    return everything(reference.attention, q, k, v, alibi(slopes, q.shape[2], k.shape[2]))


def bound_alibi(
    setting: bounds.Setting, want: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, slopes: np.ndarray
) -> np.ndarray:
    """``bounds.attention``; the product slope · distance is rounded once more than the golden's, as much as the sum."""
    judged = partial(bounds.attention, setting, want)
    return 2.0 * everything(judged, q, k, v, alibi(slopes, q.shape[2], k.shape[2]))


def patches(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """About half of all keys visible, one query row in eight sees none, another one only."""
    visible = rng.random(shape) < 0.5
    kind = rng.integers(0, 8, shape[:-1])[..., None]
    return np.where(kind == 0, False, np.where(kind == 1, np.arange(shape[-1]) == shape[-1] // 2, visible))


def lengths(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Padding on the left or right of each sequence; one may be all padding."""
    place, cut = np.arange(shape[1]), rng.integers(0, shape[1] + 1, shape[:1])[:, None]
    return np.where(rng.random(shape[:1])[:, None] < 0.5, place < cut, place >= cut)


def slopes(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """2^-1, 2^-2, ..., as ALiBi has them."""
    return 2.0 ** -(1.0 + np.arange(shape[0]))


def selecting_masked(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    """See ``selecting``: of the keys that a mask leaves, one is selected to the bit."""
    return *attention.selecting(rng, d), patches(rng, (d["B"], d["H"], d["S"], d["T"]), d)


def row_by_row(kind: str) -> Known:
    """Row 0 sees all keys, row 1 none: the mean of the values, and zeros."""
    v = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    q, k = np.zeros((1, 1, 2, 4), np.float32), attention.tokens(1, 1, 3, 4)
    right = np.stack([v[0, 0].mean(axis=0), np.zeros(4)])[None, None]
    mask = np.array([[True] * 3, [False] * 3])[None, None]
    return Known(f"a {kind} row of the mask that hides every key gives zeros", (q, k, v, mask), right, 1e-6)


Q, K, V = attention.Q, attention.K, attention.V
FREE = {"B": span(0, 2), "S": span(0, 5), "T": around_tiles()}
COMMON = {
    "result": "B H S D",
    "cost": attention.COST,
    "values": attention.VALUES,
    "modes": "attention",
    "properties": (THREADS, reversal("B")),
}
SELF = Shapes(free=FREE, static=HEADS, size=attention.size)
SPECS = (
    OpSpec(
        name="attention_masked",
        module=Masked,
        golden=golden_masked,
        bound=bound_masked,
        operands=(Q, K, V, Operand("mask", "B H S T", role="fixed", fill=patches, format=BOOL)),
        shapes=SELF,
        exact=selecting_masked,
        known=(row_by_row("bool"),),
        **COMMON,
    ),
    OpSpec(
        name="attention_padded",
        module=Padded,
        golden=golden_padded,
        bound=bound_padded,
        operands=(Q, K, V, Operand("kept", "B T", role="fixed", fill=lengths, format=BOOL)),
        shapes=SELF,
        **COMMON,
    ),
    OpSpec(
        name="attention_alibi",
        module=Alibi,
        golden=golden_alibi,
        bound=bound_alibi,
        operands=(Q, K, V, Operand("slopes", "H", role="fixed", fill=slopes)),
        shapes=SELF,
        **COMMON,
    ),
    OpSpec(
        name="attention_capped_window",
        module=CappedWindow,
        golden=partial(reference.attention, window=WINDOW, softcap=CAP),
        bound=partial(bounds.attention, window=WINDOW, softcap=CAP),
        operands=(Q, K, V, Operand("past", "B", role="fixed", fill=attention.past, format=I64)),
        shapes=Shapes(
            free={"B": span(0, 2), "S": span(0, 5), "P": around_tiles()},
            derived={"T": lambda d: d["S"] + d["P"]},
            static=HEADS,
            size=attention.size,
        ),
        **COMMON,
    ),
)
