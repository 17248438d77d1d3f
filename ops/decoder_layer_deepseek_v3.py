"""Decoder layer of DeepSeek-V3: latent attention with YaRN positions, routed experts in groups, a shared expert.

Two forms of one layer. Naive, as the model is written: keys and values of every head are expanded from the latents.
Absorbed: queries are taken to the latents and what comes back to values, so that a cache of latents would be enough.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from assay import bounds
from assay.analysis import Analysis, Bounded
from assay.metamorphic import CAUSALITY, THREADS, prefix, reversal
from assay.reference.layers import heads, mlp
from assay.spec import Cost, Operand, OpSpec, load
from assay.strategies.shapes import Dims, Shapes, around_tiles, span

layers = load(Path(__file__).with_name("layers.py"))
GROUPS, KEPT, TOP, FACTOR = 4, 2, 3, 2.5
#: YaRN: a text STRETCH times as long as the TRAINED positions; between BETA turns in them frequencies are mixed.
STRETCH, TRAINED, BETA, BASE = 40.0, 4, (1.0, 0.1), 10000.0
MSCALE = 0.1 * math.log(STRETCH) + 1
#: Small, as the carried bound grows with the fan-in of each of its seven products in a row.
SIZES = (
    {"E": 16, "H": 3, "N": 4, "R": 2, "V": 3, "L": 9, "C": 8, "F": 6, "X": 8, "G": 10},
    {"E": 13, "H": 2, "N": 5, "R": 4, "V": 6, "L": 7, "C": 6, "F": 5, "X": 12, "G": 17},
)


def rotate(x, cos, sin):
    """Pairs lie side by side (2j, 2j + 1); they leave as halves."""
    return layers.rotate(torch.cat((x[..., ::2], x[..., 1::2]), dim=-1), cos, sin)


class DeepseekV3(torch.nn.Module):
    def forward(self, x, cos, sin, w, q_a, q_w, q_b, kv_a, kv_w, kv_b, wo, after, router, bias, gate_up, down, *shared):
        h = x + self.attend(layers.norm(x, w), cos, sin, q_a, q_w, q_b, kv_a, kv_w, kv_b, wo)
        n = layers.norm(h, after)
        rows = n.flatten(0, 1)
        routed = self.routed(rows, *self.choose(rows, router, bias), gate_up, down)
        return h + (routed.view(n.shape) + layers.Mlp()(n, *shared))

    def attend(self, n, cos, sin, q_a, q_w, q_b, kv_a, kv_w, kv_b, wo):
        batch, tokens, turned, rank = *n.shape[:2], cos.shape[-1], len(kv_w)
        count, size, values = split(q_b, kv_b, wo, turned)
        q = F.linear(layers.norm(F.linear(n, q_a), q_w), q_b).view(batch, tokens, count, size + turned).transpose(1, 2)
        q, q_turned = q[..., :size], rotate(q[..., size:], cos, sin)
        latent = F.linear(n, kv_a)
        c, shared = layers.norm(latent[..., :rank], kv_w), rotate(latent[:, None, :, rank:], cos, sin)
        scale = (size + turned) ** -0.5 * MSCALE * MSCALE
        up = kv_b.view(count, size + values, rank)
        o = self.attention(q, q_turned, c, shared, up[:, :size], up[:, size:], scale)
        return F.linear(o.transpose(1, 2).reshape(batch, tokens, count * values), wo)

    def attention(self, q, turned, c, shared, up_k, up_v, scale):
        both = torch.cat((up_k, up_v), dim=1).flatten(0, 1)
        expanded = F.linear(c, both).unflatten(-1, (len(up_k), len(both) // len(up_k))).transpose(1, 2)
        k = torch.cat((expanded[..., : q.shape[-1]], shared.expand(-1, q.shape[1], -1, -1)), dim=-1)
        v = expanded[..., q.shape[-1] :]
        return F.scaled_dot_product_attention(torch.cat((q, turned), dim=-1), k, v, is_causal=True, scale=scale)

    def choose(self, rows, router, bias):
        """The experts of each row, by score and bias, and their weights, by score alone."""
        scores = F.linear(rows, router).sigmoid()
        biased = scores + bias
        groups = biased.view(rows.shape[0], GROUPS, len(router) // GROUPS)
        best = torch.topk(groups.topk(2, dim=-1)[0].sum(dim=-1), KEPT, dim=-1, sorted=False)[1]
        kept = torch.zeros(rows.shape[0], GROUPS, dtype=torch.bool).scatter(1, best, True)
        masked = groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)
        ids = torch.topk(masked, TOP, dim=-1, sorted=False)[1]
        weights = scores.gather(1, ids)
        return ids, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * FACTOR

    def routed(self, rows, ids, weights, gate_up, down):
        flat = ids.reshape(-1)
        hidden = torch.bmm(gate_up[flat], rows.repeat_interleave(TOP, 0).unsqueeze(-1)).squeeze(-1)
        gate, up = hidden.chunk(2, dim=-1)
        out = torch.bmm(down[flat], (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1) * weights.reshape(-1, 1)
        return out.view(rows.shape[0], TOP, rows.shape[1]).sum(dim=1)


class Absorbed(DeepseekV3):
    """What a compiler is given instead of :meth:`over_latents` is its own operator."""

    def attention(self, q, turned, c, shared, up_k, up_v, scale):
        latents = torch.cat((c, shared[:, 0]), dim=-1)
        absorbed = torch.cat((torch.matmul(q, up_k), turned), dim=-1)
        return torch.matmul(self.over_latents(absorbed, latents, scale, c.shape[-1]), up_v.transpose(1, 2))

    def over_latents(self, q, latents, scale, width):
        """Every head over the same latents [B, S, C + R], whose first ``width`` components are values."""
        rows = latents[:, None].expand(-1, q.shape[1], -1, -1)
        return F.scaled_dot_product_attention(q, rows, rows[..., :width], is_causal=True, scale=scale)


def split(q_b, kv_b, wo, turned: int) -> tuple[int, int, int]:
    """(heads H, unrotated components N of a key, components V of a value), from H(N + R), H(N + V), HV rows and R."""
    count = (len(q_b) - len(kv_b) + wo.shape[1]) // turned
    return count, len(q_b) // count - turned, wo.shape[1] // count


def reference(
    run: Analysis, x: Bounded, cos: np.ndarray, sin: np.ndarray, w: np.ndarray, q_a: np.ndarray, q_w: np.ndarray,
    q_b: np.ndarray, kv_a: np.ndarray, kv_w: np.ndarray, kv_b: np.ndarray, wo: np.ndarray, after: np.ndarray,
    router: np.ndarray, bias: np.ndarray, gate_up: np.ndarray, down: np.ndarray, *shared: np.ndarray,
) -> Bounded:  # fmt: skip
    """The same on fp64 values with their bounds, naive; the bound is wide enough for both forms."""
    normed = partial(run.rms_norm, eps=layers.EPS)
    turned, rank, (batch, tokens) = cos.shape[-1], len(kv_w), x.value.shape[:2]
    count, size, values = split(q_b, kv_b, wo, turned)

    def rotated(part: Bounded) -> Bounded:
        return run.rope(part.moved(lambda a: np.concatenate((a[..., ::2], a[..., 1::2]), axis=-1)), cos, sin)

    n = normed(x, w)
    q = heads(run.linear(normed(run.linear(n, q_a), q_w), q_b), size + turned)
    q = joined(q.moved(lambda a: a[..., :size]), rotated(q.moved(lambda a: a[..., size:])))
    latent = run.linear(n, kv_a)
    c = normed(latent.moved(lambda a: a[..., :rank]), kv_w)
    expanded = run.linear(c, kv_b)
    # Absorbed, the sums over N and C change places: each product is rounded in a sum over the other as well.
    passed = (bounds.root(size) + bounds.root(rank)) * run.setting.acc.u
    expanded = Bounded(expanded.value, expanded.error + passed * (np.abs(c.value) @ np.abs(kv_b).T))
    expanded = heads(expanded, size + values)
    common = rotated(latent.moved(lambda a: a[:, None, :, rank:])).moved(lambda a: np.repeat(a, count, axis=1))
    k, v = joined(expanded.moved(lambda a: a[..., :size]), common), expanded.moved(lambda a: a[..., size:])
    o = run.attention(q, k, v, np.zeros(batch, int), scale=(size + turned) ** -0.5 * MSCALE**2)
    h = run.add(x, run.linear(o.moved(lambda a: a.swapaxes(1, 2).reshape(batch, tokens, wo.shape[1])), wo))
    n = normed(h, after)
    rows = n.moved(lambda a: a.reshape(batch * tokens, a.shape[-1]))
    experts = mixture(run, rows, router, bias, gate_up, down).moved(lambda a: a.reshape(n.value.shape))
    return run.add(h, run.add(experts, mlp(run, n, *shared)))


def joined(one: Bounded, other: Bounded) -> Bounded:
    """Side by side along the last axis."""
    return Bounded(*(np.concatenate(p, axis=-1) for p in ((one.value, other.value), (one.error, other.error))))


def mixture(
    run: Analysis, rows: Bounded, router: np.ndarray, bias: np.ndarray, gate_up: np.ndarray, down: np.ndarray
) -> Bounded:
    """Routed experts on rows [M, E]. A row whose choice rounding may turn has no bound.

    A weight is a score over a sum of TOP, times a factor: TOP + 3 roundings beside the errors of the scores; weighting
    and adding are TOP + 1 more.
    """
    u, inner = run.setting.acc.u, down.shape[2]
    scores = sigmoid(run, run.linear(rows, router))
    ids, doubtful = chosen(scores, bias, u)
    value, error = np.zeros_like(rows.value), np.zeros_like(rows.value)
    for row, kept in enumerate(ids):
        score, slack = scores.value[row, kept], scores.error[row, kept]
        weights = score / (score.sum() + 1e-20) * FACTOR
        off = weights * (slack / score + slack.sum() / score.sum() + (TOP + 3) * u)
        one = rows.moved(lambda a, row=row: a[row : row + 1])
        for place, expert in enumerate(kept):
            hidden = run.linear(one, gate_up[expert])
            gate, up = (hidden.moved(lambda a, p=p: a[:, p]) for p in (slice(inner), slice(inner, None)))
            out = run.linear(run.swiglu(gate, up), down[expert])
            own = np.abs(out.value[0]) + out.error[0]
            value[row] += weights[place] * out.value[0]
            error[row] += weights[place] * out.error[0] + (off[place] + (TOP + 1) * u * weights[place]) * own
    return Bounded(value, np.where(doubtful[:, None], np.inf, error + 4 * run.setting.eta))


def sigmoid(run: Analysis, x: Bounded) -> Bounded:
    """Its slope is at most a quarter; its own part is that of ``bounds.silu``."""
    value = 1.0 / (1.0 + np.exp(-x.value))
    return Bounded(value, x.error / 4 + (4.0 * (1.0 + np.abs(x.value)) + 6.0) * run.setting.acc.u * value)


def chosen(scores: Bounded, bias: np.ndarray, u: float) -> tuple[np.ndarray, np.ndarray]:
    """Experts [M, TOP] of each row, and whether [M] errors may turn the choice of a group or an expert."""
    biased = scores.value + bias
    error = np.max(scores.error + u * np.abs(biased), axis=-1, initial=0.0)
    groups = biased.reshape(len(biased), GROUPS, len(bias) // GROUPS)
    sums = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
    best, close = largest(sums, KEPT, 2 * error + u * np.max(np.abs(sums), axis=-1, initial=0.0))
    kept = np.zeros(sums.shape, bool)
    np.put_along_axis(kept, best, True, axis=-1)
    ids, tied = largest(np.where(kept[..., None], groups, -np.inf).reshape(biased.shape), TOP, error)
    return ids, close | tied


def largest(values: np.ndarray, count: int, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the ``count`` largest of each row, and whether values off by ``error`` may give others."""
    order = np.argsort(-values, axis=-1, kind="stable")
    edge = np.take_along_axis(values, order[:, count - 1 : count + 1], axis=-1)
    return order[:, :count], ~(edge[:, 0] - edge[:, 1] > 2 * error)


def angles(of: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """YaRN: pairs that turn less than BETA[1] times in TRAINED positions are slowed STRETCH-fold, those that turn more
    than BETA[0] times are not, linearly between. The two factors of a text's length cancel in cos and sin."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
        size = shape[-1]
        fast, slow = (size * math.log(TRAINED / (b * 2 * math.pi)) / (2 * math.log(BASE)) for b in BETA)
        first, last = max(math.floor(fast), 0), min(math.ceil(slow), size - 1)
        slowed = np.clip((np.arange(size // 2) - first) / max(last - first, 0.001), 0, 1)
        frequency = BASE ** (-np.arange(0, size, 2) / size) * (1 - slowed + slowed / STRETCH)
        angle = np.arange(shape[1])[:, None] * frequency
        return np.broadcast_to(of(np.concatenate((angle, angle), axis=-1)), shape)

    return fill


def biases(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / 10


def fixed(name: str, dims: str, fill: Callable[..., np.ndarray] = layers.matrix) -> Operand:
    return Operand(name, dims, role="fixed", fill=fill)


def gain(name: str, dim: str) -> Operand:
    return Operand(name, dim, role="weight", fill=layers.gains)


def multiplies(d: Dims) -> int:
    """Multiply-adds per token."""
    rows = d["E"] * (d["L"] + d["K"] + d["O"] + d["X"] + 3 * TOP * d["F"] + 3 * d["G"])
    return rows + d["L"] * d["Q"] + d["C"] * d["U"] + d["S"] * (d["Q"] + d["O"])


SHAPES = Shapes(
    free={"B": span(0, 2), "S": around_tiles()},
    static=tuple(
        {**s, "Q": s["H"] * (s["N"] + s["R"]), "U": s["H"] * (s["N"] + s["V"]), "O": s["H"] * s["V"],
         "K": s["C"] + s["R"], "W": 2 * s["F"]}
        for s in SIZES
    ),
    size=lambda d: 2 * d["B"] * d["S"] * multiplies(d),
)  # fmt: skip
OPERANDS = (
    layers.X, fixed("cos", "B S R", angles(np.cos)), fixed("sin", "B S R", angles(np.sin)), gain("w", "E"),
    layers.weight("q_a", "L", "E"), gain("q_w", "L"), layers.weight("q_b", "Q", "L"),
    layers.weight("kv_a", "K", "E"), gain("kv_w", "C"), layers.weight("kv_b", "U", "C"), layers.weight("wo", "E", "O"),
    gain("after", "E"), layers.weight("router", "X", "E"), fixed("bias", "X", biases),
    fixed("gate_up", "X W E"), fixed("down", "X E F"),
    layers.weight("gate", "G", "E"), layers.weight("up", "G", "E"), layers.weight("out", "E", "G"),
)  # fmt: skip


def spec(name: str, module: type[torch.nn.Module]) -> OpSpec:
    return replace(
        layers.layer(name, module, reference, *OPERANDS),
        shapes=SHAPES,
        cost=Cost(lambda d: 2 * d["B"] * d["S"] * multiplies(d), lambda d, size: size * multiplies(d)),
        quants=("fp32",),
        quantised=None,
        properties=(THREADS, CAUSALITY, prefix("B", "S"), reversal("B")),
    )


SPECS = (spec("decoder_layer_deepseek_v3", DeepseekV3), spec("decoder_layer_deepseek_v3_absorbed", Absorbed))
