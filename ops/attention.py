"""attention: causal over its own tokens, full, and over a cache with a past per row (decode, chunked prefill)."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from assay import bounds, reference
from assay.case import Example
from assay.formats import I64
from assay.judge import Judge
from assay.metamorphic import CAUSALITY, REPEATED_HEADS, THREADS, Property, prefix, reversal
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles, span


class Causal(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class TopLeft(torch.nn.Module):
    """Fewer queries than keys and no cache: PyTorch aligns the causal mask top-left, query i sees keys 0 to i."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Full(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class Cached(torch.nn.Module):
    """Query s of row b stands at position past[b] + s and sees the keys up to it. PyTorch's ``is_causal`` aligns the
    mask top-left, so a query over a cache needs an explicit one."""

    def forward(self, q, k, v, past):
        position = past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(k.shape[2]) <= position, enable_gqa=True)


def golden_self(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool) -> np.ndarray:
    return reference.attention(q, k, v, np.zeros(len(q), int), causal=causal)


def bound_self(
    setting: bounds.Setting, want: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool
) -> np.ndarray:
    """See ``bounds.attention``, without a past."""
    return bounds.attention(setting, want, q, k, v, np.zeros(len(q), int), causal=causal)


def past(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """As many earlier keys as the cache has room for, one row always full to the last slot."""
    count = rng.integers(0, d["T"] - d["S"] + 1, shape)
    count[:1] = d["T"] - d["S"]
    return count


def selecting(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    """Scores so far apart that softmax selects one visible key to the bit, so the result is a row of v.

    Keys are s_j · r with distinct integers s_j and signs r, queries 256 · r: scores differ by 256 · √D at least, and
    exp(−256) is zero in float32. Which key wins depends on the frontier, the head mapping and the slot alone.
    """
    sign = rng.choice([-1, 1], d["D"])
    rank = rng.permuted(np.tile(np.arange(d["T"]), (d["B"], d["K"], 1)), axis=-1)
    q = np.broadcast_to(256 * sign, (d["B"], d["H"], d["S"], d["D"]))
    return q, rank[..., None] * sign, rng.integers(-1000, 1000, (d["B"], d["K"], d["T"], d["D"]))


def selecting_cached(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    return *selecting(rng, d), past(rng, (d["B"],), d)


def stale_slots(judge: Judge, example: Example) -> None:
    """What lies in the cache behind the last visible key, NaN even, changes no bit."""
    inputs = judge.inputs(example)
    q, k, v, count = (t.clone() for t in inputs)
    for row, first in enumerate(count.tolist()):
        k[row, :, first + q.shape[2] :] = float("nan")
        v[row, :, first + q.shape[2] :] = float("nan")
    judge.same(
        example, "stale cache slots reach the result", judge.run(inputs, example), judge.run((q, k, v, count), example)
    )


def query_by_query(judge: Judge, example: Example) -> None:
    """A chunk of queries at once and one query at a time give the same bits: prefill ≡ decode."""
    q, k, v, count = inputs = judge.inputs(example)
    steps = [judge.run((q[:, :, s : s + 1], k, v, count + s), example) for s in range(q.shape[2])]
    if steps:
        together = judge.run(inputs, example)
        judge.same(example, "a chunk and single queries differ", together, np.concatenate(steps, axis=2))


def tokens(*shape: int) -> np.ndarray:
    """Reproducible numbers of order one."""
    return np.sin(0.37 * np.arange(np.prod(shape)) + len(shape)).astype(np.float32).reshape(shape)


def top_left(queries: int, keys: int) -> Known:
    """Query 0 sees key 0 alone: its result is v[0, 0, 0] to the bit; later keys are never seen."""
    q, k, v = tokens(1, 1, queries, 4), tokens(1, 1, keys, 4), tokens(1, 1, keys, 4) + 1
    right = golden_self(*(a.astype(np.float64) for a in (q, k, v)), causal=True)
    right[0, 0, 0] = v[0, 0, 0]
    return Known(f"{queries} queries and {keys} keys align top-left", (q, k, v), right, 1e-6, "B")


def masked_row() -> Known:
    """One row of the batch sees no key (it would start before the cache): zeros, no NaN; the other is a mean."""
    q, k = np.zeros((2, 1, 1, 4), np.float32), tokens(2, 1, 3, 4)
    v = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)
    right = np.stack([np.zeros((1, 1, 4)), v[1:2, 0].mean(axis=1)[:, None]])[:, :, 0][:, None]
    return Known(
        "a row that sees no key is zero",
        (q, k, v, np.array([-1, 2])),
        right.reshape(2, 1, 1, 4),
        1e-6,
        dims={"G": 1, "P": 2},
    )


def decode_sees_all() -> Known:
    """One query over 3 cached keys and its own: all four are seen (a 1 × 4 lower triangle would show one)."""
    v = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1) * np.ones((1, 1, 1, 4), np.float32)
    zero = np.zeros((1, 1, 1, 4), np.float32)
    return Known(
        "decode sees the whole cache",
        (zero, np.zeros_like(v), v, np.array([3])),
        zero + 1.5,
        1e-6,
        "B",
        {"G": 1, "P": 3},
    )


Q, K, V = Operand("q", "B H S D"), Operand("k", "B K T D"), Operand("v", "B K T D")
#: Query heads, key heads, head size: fixed when a model is compiled. Grouped 2, 4, 3 and 8 to 1, full, odd, and large.
HEADS = tuple(
    {"H": h, "K": k, "D": d}
    for h, k, d in ((4, 2, 8), (4, 1, 5), (3, 3, 16), (9, 3, 33), (8, 1, 17), (2, 1, 64), (2, 2, 80))
)


def flops(d: Dims) -> int:
    return 4 * d["B"] * d["H"] * d["S"] * d["T"] * d["D"]


def size(d: Dims) -> int:
    return 2 * flops(d) + 30 * d["B"] * d["H"] * d["S"] * d["T"] + 10 * d["B"] * d["K"] * d["T"] * d["D"]


COST = Cost(
    flops,
    lambda d, size: size * d["B"] * d["D"] * (2 * d["H"] * d["S"] + 2 * d["K"] * d["T"]),
)
BATCH = {"B": span(0, 3)}
VALUES = ("normal", "positive", "cancellation", "spike", "equal", "one_hot")

CAUSAL = OpSpec(
    name="attention_causal",
    module=Causal,
    golden=partial(golden_self, causal=True),
    bound=partial(bound_self, causal=True),
    operands=(Q, Operand("k", "B K S D"), Operand("v", "B K S D")),
    shapes=Shapes(free={**BATCH, "S": around_tiles()}, derived={"T": lambda d: d["S"]}, static=HEADS, size=size),
    result="B H S D",
    cost=COST,
    values=VALUES,
    exact=selecting,
    modes="attention",
    causal="S",
    properties=(THREADS, CAUSALITY, REPEATED_HEADS, prefix("B", "S"), reversal("B"), reversal("H", "K")),
)
FULL = OpSpec(
    name="attention_full",
    module=Full,
    golden=partial(golden_self, causal=False),
    bound=partial(bound_self, causal=False),
    operands=(Q, K, V),
    shapes=Shapes(free={**BATCH, "S": span(0, 5), "T": around_tiles()}, static=HEADS, size=size),
    result="B H S D",
    cost=COST,
    values=VALUES,
    exact=selecting,
    modes="attention",
    properties=(THREADS, REPEATED_HEADS, reversal("B"), reversal("H", "K"), reversal("S")),
)
CACHED = OpSpec(
    name="attention_cached",
    module=Cached,
    golden=reference.attention,
    bound=bounds.attention,
    operands=(Q, K, V, Operand("past", "B", role="fixed", fill=past, format=I64)),
    shapes=Shapes(
        free={**BATCH, "S": span(0, 5), "P": around_tiles()},
        derived={"T": lambda d: d["S"] + d["P"]},
        static=HEADS,
        size=size,
    ),
    result="B H S D",
    cost=COST,
    values=VALUES,
    exact=selecting_cached,
    known=(masked_row(), decode_sees_all()),
    modes="attention",
    properties=(
        THREADS,
        REPEATED_HEADS,
        reversal("B"),
        reversal("H", "K"),
        Property("stale slots", stale_slots),
        Property("query by query", query_by_query),
    ),
)
TOP_LEFT = OpSpec(
    name="attention_top_left",
    module=TopLeft,
    golden=partial(golden_self, causal=True),
    bound=partial(bound_self, causal=True),
    operands=(Q, K, V),
    shapes=Shapes(free={**BATCH, "S": span(0, 5), "T": around_tiles()}, static=HEADS, size=size),
    result="B H S D",
    cost=COST,
    values=VALUES,
    exact=selecting,
    modes="attention",
    known=(top_left(1, 4), top_left(2, 3), top_left(1, 3)),
    properties=(THREADS, REPEATED_HEADS),
)
SPECS = (CAUSAL, FULL, CACHED, TOP_LEFT)
