"""attention over caches in narrower types, in a ring, in pages, and of latents (DeepSeek's MLA).

What a cache holds is an operand: its numbers, rounded, are what the golden computes with.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np
import torch

from assay import bounds, reference
from assay.formats import BF16, F16, F32, I8, I64
from assay.metamorphic import REPEATED_HEADS, THREADS, reversal
from assay.reference.attention import visible
from assay.spec import Operand, OpSpec, load
from assay.strategies.shapes import Dims, Shapes, around_tiles, span

attention = load(Path(__file__).with_name("attention.py"))
WINDOW, PAGE = 8, 16
#: YaRN's correction of the scale for a text 40 times as long as the model was trained on; the scale takes its square.
MSCALE = 0.1 * math.log(40) + 1
HEADS = attention.HEADS[:3] + attention.HEADS[5:6]


class Cached(attention.Cached):
    """Over a cache in another type: its numbers as they are."""

    def forward(self, q, k, v, past):
        return super().forward(q, k.to(q.dtype), v.to(q.dtype), past)


class Int8(attention.Cached):
    """Over int8 codes with one scale per token and head."""

    def forward(self, q, k, k_scale, v, v_scale, past):
        return super().forward(q, k * k_scale[..., None], v * v_scale[..., None], past)


class Ring(attention.Cached):
    """A ring keeps position p in slot p mod R; a query sees the last ``WINDOW`` positions, its own among them."""

    def forward(self, q, k, v, past):
        newest = (past + q.shape[2] - 1)[:, None]
        held = (newest - (newest - torch.arange(k.shape[2])) % k.shape[2])[:, None, None]
        query = past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
        seen = (held >= 0) & (held <= query) & (held > query - WINDOW)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


class Paged(attention.Cached):
    """Position p of sequence b is in slot p mod P of page table[b, p // P]."""

    def forward(self, q, k, v, table, past):
        k, v = (pages[table].transpose(1, 2).flatten(2, 3) for pages in (k, v))
        return super().forward(q, k, v, past)


class Latent(torch.nn.Module):
    """Naive: the latents of each token are expanded to keys and values of every head, the rotated key is shared."""

    def forward(self, q, rotated, latents, up_k, up_v, past):
        c, shared = latents[:, None, :, : up_k.shape[-1]], latents[:, None, :, up_k.shape[-1] :]
        k = torch.cat((c @ up_k.transpose(1, 2), shared.expand(-1, q.shape[1], -1, -1)), dim=-1)
        position = past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
        scale = k.shape[-1] ** -0.5 * MSCALE * MSCALE
        return torch.nn.functional.scaled_dot_product_attention(
            torch.cat((q, rotated), dim=-1), k, c @ up_v.transpose(1, 2),
            attn_mask=torch.arange(k.shape[2]) <= position, scale=scale,
        )  # fmt: skip


def scaled(q, k, k_scale, v, v_scale, past):
    """The operands of attention over int8 codes."""
    return q, k * k_scale[..., None], v * v_scale[..., None], past


def golden_int8(*operands: np.ndarray) -> np.ndarray:
    return reference.attention(*scaled(*operands))


def bound_int8(setting: bounds.Setting, want: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """``bounds.attention``; each product with a scale is one rounding more, which c√D and c√N + 8 leave room for."""
    return bounds.attention(setting, want, *scaled(*operands))


def unrolled(q, k, v, past):
    """What a ring holds, by position: positions that it has lost are never seen."""
    ring, length = k.shape[2], int(past.max(initial=0)) + q.shape[2]
    slots = np.arange(length) % ring
    return q, k[:, :, slots], v[:, :, slots], past


def golden_ring(*operands: np.ndarray) -> np.ndarray:
    return reference.attention(*unrolled(*operands), window=WINDOW)


def bound_ring(setting: bounds.Setting, want: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """See ``bounds.attention``."""
    return bounds.attention(setting, want, *unrolled(*operands), window=WINDOW)


def gathered(q, k, v, table, past):
    """Pages of each sequence side by side."""
    k, v = (np.concatenate([pages[table[:, i]] for i in range(table.shape[1])], axis=2) for pages in (k, v))
    return q, k, v, past


def golden_paged(*operands: np.ndarray) -> np.ndarray:
    return reference.attention(*gathered(*operands))


def bound_paged(setting: bounds.Setting, want: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """See ``bounds.attention``."""
    return bounds.attention(setting, want, *gathered(*operands))


def expanded(q, rotated, latents, up_k, up_v):
    """Queries, keys and values of every head."""
    rank = up_k.shape[-1]
    c, shared = latents[:, None, :, :rank], latents[:, None, :, rank:]
    k = np.concatenate((c @ up_k.swapaxes(1, 2), np.repeat(shared, q.shape[1], axis=1)), axis=-1)
    return np.concatenate((q, rotated), axis=-1), k, c @ up_v.swapaxes(1, 2)


def golden_latent(q, rotated, latents, up_k, up_v, past) -> np.ndarray:
    q, k, v = expanded(q, rotated, latents, up_k, up_v)
    return reference.attention(q, k, v, past, scale=q.shape[-1] ** -0.5 * MSCALE**2)


def bound_latent(setting: bounds.Setting, want: np.ndarray, q, rotated, latents, up_k, up_v, past) -> np.ndarray:
    """``bounds.attention``, and what its operands are off by before it.

    Absorbed or not, a score is a sum over D·R products of q, W and c, rounded twice as sums: δ = scale·(c√D + c√R)·u
    times the sum over absolute values. The values are off by c√R·u·Σ|W||c| (absorbed: by the same after the attention).
    """
    query, k, v = expanded(q, rotated, latents, up_k, up_v)
    scale = query.shape[-1] ** -0.5 * MSCALE**2
    sizes = expanded(*map(np.abs, (q, rotated, latents, up_k, up_v)))
    passed = bounds.root(q.shape[-1]) + bounds.root(up_k.shape[-1])
    mask = visible((q.shape[2], k.shape[2]), past)[:, None]
    products = np.max(np.where(mask, sizes[0] @ sizes[1].swapaxes(-1, -2), 0.0), axis=-1, keepdims=True, initial=0.0)
    shift = 2.0 * scale * passed * setting.acc.u * products
    own = bounds.attention(setting, want, query, k, v, past, scale=scale)
    share = partial(reference.attention, query, k, past=past, scale=scale)
    return own * np.exp(shift) + np.expm1(shift) * share(np.abs(v)) + passed * setting.acc.u * share(sizes[2])


def codes(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return rng.integers(-127, 128, shape)


def scales(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """About 1/40, one in eight zero: a row of zeros has no scale."""
    return np.where(rng.random(shape) < 0.125, 0, np.abs(rng.standard_normal(shape, np.float32)) / 40)


def anywhere(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """So many earlier tokens that a ring is empty, partly filled, wrapping, or was overwritten several times."""
    return rng.integers(0, 3 * d["R"] + 1, shape)


def shuffled(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Every page of every sequence is another one."""
    return rng.permutation(d["N"])[: shape[0] * shape[1]].reshape(shape)


def in_pages(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """As many earlier tokens as the pages have room for, one sequence always full."""
    count = rng.integers(0, d["M"] * PAGE - d["S"] + 1, shape)
    count[:1] = d["M"] * PAGE - d["S"]
    return count


Q, PAST = attention.Q, Operand("past", "B", role="fixed", fill=attention.past, format=I64)
COMMON = {"result": "B H S D", "values": ("normal", "positive", "spike", "equal"), "cost": attention.COST}
CACHE = Shapes(
    free={"B": span(0, 2), "S": span(0, 5), "P": around_tiles()},
    derived={"T": lambda d: d["S"] + d["P"]},
    static=HEADS,
    size=attention.size,
)
LATENT_HEADS = ({"H": 4, "D": 8, "E": 4, "R": 16, "L": 20, "V": 12}, {"H": 3, "D": 5, "E": 2, "R": 9, "L": 11, "V": 7})


def narrow(name: str, fmt) -> OpSpec:
    return OpSpec(
        name=f"attention_cached_{name}",
        module=Cached,
        golden=reference.attention,
        bound=bounds.attention,
        operands=(Q, Operand("k", "B K T D", format=fmt), Operand("v", "B K T D", format=fmt), PAST),
        shapes=CACHE,
        modes="attention",
        properties=(THREADS, REPEATED_HEADS),
        **COMMON,
    )


SPECS = (
    narrow("f16", F16),
    narrow("bf16", BF16),
    OpSpec(
        name="attention_cached_int8",
        module=Int8,
        golden=golden_int8,
        bound=bound_int8,
        operands=(
            Q,
            Operand("k", "B K T D", role="fixed", fill=codes, format=I8),
            Operand("k_scale", "B K T", role="fixed", fill=scales, format=F32),
            Operand("v", "B K T D", role="fixed", fill=codes, format=I8),
            Operand("v_scale", "B K T", role="fixed", fill=scales, format=F32),
            PAST,
        ),
        shapes=CACHE,
        modes="attention",
        properties=(THREADS, REPEATED_HEADS),
        **COMMON,
    ),
    OpSpec(
        name="attention_ring",
        module=Ring,
        golden=golden_ring,
        bound=bound_ring,
        operands=(
            Q,
            Operand("k", "B K R D"),
            Operand("v", "B K R D"),
            Operand("past", "B", role="fixed", fill=anywhere, format=I64),
        ),
        shapes=Shapes(
            free={"B": span(0, 2), "S": span(0, 5), "X": span(0, 20)},
            derived={"R": lambda d: WINDOW + max(d["S"], 1) - 1 + d["X"], "T": lambda d: d["R"]},
            static=HEADS,
            size=attention.size,
        ),
        modes="attention_ring",
        properties=(THREADS, REPEATED_HEADS, reversal("B")),
        **COMMON,
    ),
    OpSpec(
        name="attention_paged",
        module=Paged,
        golden=golden_paged,
        bound=bound_paged,
        operands=(
            Q,
            Operand("k", "N K G D"),
            Operand("v", "N K G D"),
            Operand("table", "B M", role="fixed", fill=shuffled, format=I64),
            Operand("past", "B", role="fixed", fill=in_pages, format=I64),
        ),
        shapes=Shapes(
            free={"B": span(0, 2), "S": span(0, 5), "M": span(1, 5)},
            derived={"N": lambda d: d["B"] * d["M"] + 1, "T": lambda d: d["M"] * PAGE},
            static=tuple({**heads, "G": PAGE} for heads in HEADS),
            size=attention.size,
        ),
        modes="attention_paged",
        properties=(THREADS, REPEATED_HEADS),
        **COMMON,
    ),
    OpSpec(
        name="attention_latent",
        module=Latent,
        golden=golden_latent,
        bound=bound_latent,
        operands=(
            Operand("q", "B H S D"),
            Operand("rotated", "B H S E"),
            Operand("latents", "B T L"),
            Operand("up_k", "H D R"),
            Operand("up_v", "H V R"),
            PAST,
        ),
        shapes=Shapes(
            free={"B": span(0, 2), "S": span(0, 5), "P": around_tiles()},
            derived={"T": lambda d: d["S"] + d["P"], "K": lambda d: 1},
            static=LATENT_HEADS,
            size=attention.size,
        ),
        modes="attention_latent",
        specials=("zeros", "denormal"),  # an infinity reaches other sums when the expansion is absorbed
        properties=(THREADS, reversal("B")),
        **{**COMMON, "result": "B H S V"},
    ),
)
