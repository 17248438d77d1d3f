"""Compilers with one fault each, for testing the tests: eager PyTorch with one op's program replaced by a wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from assay.backends.protocol import Program
from assay.backends.torch_eager import EagerBackend, EagerCompiled
from assay.bench import Bench
from assay.case import Case
from assay.explore import PROFILES
from assay.formats import F32, Format
from assay.judge import Judge
from assay.spec import OpSpec, load, registry

ROOT = Path(__file__).parents[1]


class Wrong(torch.nn.Module):
    """A plain function as the compiled side."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


@dataclass(frozen=True)
class FaultyBackend(EagerBackend):
    """Eager, but every program is replaced by ``function``."""

    name: str = "faulty"
    function: Callable[..., torch.Tensor] = torch.add

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        return replace(super().compile(program, target, quant=quant), module=Wrong(self.function))


def spec(name: str) -> OpSpec:
    return registry(ROOT / "ops")[name]


def judge_of(
    name: str, function: Callable[..., torch.Tensor] | None = None, examples: int = 60, fmt: Format = F32
) -> Judge:
    """The judge of an op compiled by eager, or by a compiler that computes ``function`` instead."""
    backend = EagerBackend() if function is None else FaultyBackend(function=function)
    op = spec(name)
    case = Case(op, fmt, "host", variant="naive" if op.modes else "")
    return Judge(Bench.of(backend), case, PROFILES["ci"], f"ops/test_ops.py::{name}", examples=examples)


def dropped_output_tail(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Only whole vectors of 8 are written; the rest of a row keeps the poison."""
    result = x + y
    result[..., result.shape[-1] // 8 * 8 :] = float("nan")
    return result


def dropped_reduction_tail(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The sum runs over whole blocks of 4 only."""
    whole = x.shape[-1] // 4 * 4
    return F.linear(x[..., :whole], w[..., :whole])


def seen_too_far(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The causal frontier is one key too far."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def seen_too_little(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The causal frontier is one key short: a query does not see its own."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(-1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def without_eps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)))


def tiled_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Grouped heads by tile (0 1 0 1) instead of repeat (0 0 1 1)."""
    group = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))


def slot_too_late(cache: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """New keys land one slot behind their place (the last one falls out)."""
    result = cache.clone()
    for row, first in enumerate(past.tolist()):
        room = cache.shape[2] - first - 1
        result[row, :, first + 1 : first + 1 + new.shape[2]] = new[row, :, :room]
    return result


def cache_read_short(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """Attention over the cache stops one slot early."""
    position = past[:, None, None, None] - 1 + torch.arange(q.shape[2])[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(k.shape[2]) <= position, enable_gqa=True)


class UninitialisedAccumulator:
    """Sums start at what the accumulator's memory held: the end of the call before."""

    def __init__(self) -> None:
        self.memory = torch.zeros(1)

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result = F.linear(x, w) + self.memory.reshape(-1)[0]
        if result.numel():
            self.memory = result.clone()
        return result


def bf16_accumulator(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each partial sum is rounded to bfloat16."""
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.bfloat16)
    for k in range(x.shape[1]):
        total = (total.float() + x[:, k, None] * w[None, :, k]).to(torch.bfloat16)
    return total.float()


def interleaved_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates neighbours (2j, 2j+1) instead of halves (j, j + D/2)."""
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos.unsqueeze(1) + rotated * sin.unsqueeze(1)


def truncated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """bfloat16 sums with the low half of the float32 cut off instead of rounded."""
    bits = (x.float() + y.float()).view(torch.int32)
    return (bits & -65536).view(torch.float32).to(torch.bfloat16)


def window_too_wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """The window of 4 does not count the query's own key."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = 2.0 * torch.tanh(q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 / 2.0)
    position, key = past[:, None, None, None] + torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    hidden = (key > position) | (key < position - 4)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v


def ring_not_wrapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """A slot is taken for the position of its number, however often the ring was overwritten."""
    query = past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
    slot = torch.arange(k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(slot <= query) & (slot > query - 8), enable_gqa=True)


def page_of_the_next_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, past: torch.Tensor
) -> torch.Tensor:
    """Every lookup is one row of the page table too far (the last wraps around)."""
    pages = table.flatten().roll(-1).view(table.shape)
    k, v = (x[pages].transpose(1, 2).flatten(2, 3) for x in (k, v))
    position = past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(k.shape[2]) <= position, enable_gqa=True)


def yarn_factor_once(
    q: torch.Tensor, rotated: torch.Tensor, latents: torch.Tensor, up_k: torch.Tensor, up_v: torch.Tensor,
    past: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """YaRN's correction of the scale is applied once instead of squared."""
    rank = up_k.shape[-1]
    c, shared = latents[:, None, :, :rank], latents[:, None, :, rank:]
    k = torch.cat((c @ up_k.transpose(1, 2), shared.expand(-1, q.shape[1], -1, -1)), dim=-1)
    seen = torch.arange(k.shape[2]) <= past[:, None, None, None] + torch.arange(q.shape[2])[:, None]
    query, scale = torch.cat((q, rotated), dim=-1), k.shape[-1] ** -0.5 * (0.1 * math.log(40) + 1)
    return F.scaled_dot_product_attention(query, k, c @ up_v.transpose(1, 2), attn_mask=seen, scale=scale)


def not_renormalised(
    x: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The scores of the chosen experts are weights as they are: they do not add up to one."""
    gate, up = torch.einsum("nd,nkod->nko", x, gate_up[ids]).chunk(2, dim=-1)
    return torch.einsum("nkf,nkdf,nk->nd", F.silu(gate) * up, down[ids], scores)


def biased_weights(*inputs: torch.Tensor) -> torch.Tensor:
    """The bias that decides which experts are chosen is in their weights too."""
    layer = load(ROOT / "ops" / "decoder_layer_deepseek_v3.py")

    class Biased(layer.DeepseekV3):
        def choose(self, rows, router, bias):
            ids, _ = super().choose(rows, router, bias)
            weights = (F.linear(rows, router).sigmoid() + bias).gather(1, ids)
            return ids, weights / weights.sum(dim=-1, keepdim=True) * layer.FACTOR

    return Biased()(*inputs)


def same_draw_in_every_step(x: torch.Tensor, w: torch.Tensor, seed: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Random numbers come from the seed alone."""
    return load(ROOT / "ops" / "lm_head.py").Drawn()(x, w, seed, torch.zeros_like(step))


def empty_part_counts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys in two parts, merged; one that no key of is visible enters with largest score 0 and weight 1."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1), -torch.inf)
    parts = []
    for columns, rows in zip(scores.split(8, -1), v.split(8, 2), strict=True):
        most = columns.amax(-1, keepdim=True) if columns.shape[-1] else columns.new_zeros((*columns.shape[:-1], 1))
        empty = most == -torch.inf
        most = torch.where(empty, 0.0, most)
        weights = torch.exp(columns - most)
        parts.append((most, torch.where(empty, 1.0, weights.sum(-1, keepdim=True)), weights @ rows))
    most = torch.stack([part[0] for part in parts]).amax(0)
    total = sum(torch.exp(m - most) * weight for m, weight, _ in parts)
    return sum(torch.exp(m - most) * rows for m, _, rows in parts) / torch.where(total == 0, 1.0, total)
