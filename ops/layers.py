"""Layers of a decoder: attention block, MLP, whole decoder layer. Written in PyTorch as models write them, weights
as inputs; the bound is carried through the golden by running error analysis."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from assay.analysis import Analysis, Bounded
from assay.bounds import Setting
from assay.formats import F32
from assay.metamorphic import CAUSALITY, PACKED_PLAIN, THREADS, prefix, reversal
from assay.quantised import QUANTISED, layer_in_mode
from assay.reference import layers, rope_angles
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles, span

EPS = 1e-5
#: Head counts and sizes, fixed at compile time as in a model: grouped, one key head with odd sizes, full heads.
GEOMETRIES = (
    {"E": 32, "H": 4, "K": 2, "D": 8, "F": 48},
    {"E": 21, "H": 3, "K": 1, "D": 10, "F": 37},
    {"E": 64, "H": 4, "K": 4, "D": 16, "F": 96},
)


def norm(x, w):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos.unsqueeze(1) + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin.unsqueeze(1)


class AttentionBlock(torch.nn.Module):
    def forward(self, x, cos, sin, w, wq, wk, wv, wo):
        batch, tokens, size = x.shape[0], x.shape[1], cos.shape[-1]
        n = norm(x, w)
        q, k, v = (F.linear(n, p).view(batch, tokens, len(p) // size, size).transpose(1, 2) for p in (wq, wk, wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(o.transpose(1, 2).reshape(batch, tokens, len(wq)), wo)


class Mlp(torch.nn.Module):
    def forward(self, x, gate, up, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class DecoderLayer(torch.nn.Module):
    def forward(self, x, cos, sin, w, wq, wk, wv, wo, after, gate, up, down):
        h = x + AttentionBlock()(x, cos, sin, w, wq, wk, wv, wo)
        return h + Mlp()(norm(h, after), gate, up, down)


def traced(layer: Callable[..., Bounded], setting: Setting, *operands: np.ndarray) -> Bounded:
    run = Analysis.inside(setting)
    return layer(run, run.exact(operands[0]), *operands[1:])


def golden(*operands: np.ndarray, layer: Callable[..., Bounded], quant: str = "fp32") -> np.ndarray:
    return traced(layer, Setting(F32, F32, quant=quant), *operands).value


def bound(setting: Setting, want: np.ndarray, *operands: np.ndarray, layer: Callable[..., Bounded]) -> np.ndarray:
    """Running error analysis of the golden (``assay.analysis``)."""
    return traced(layer, setting, *operands).error


def matrix(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Normal with variance 1/in, as models are initialised: every activation stays of order one."""
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))


def gains(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return 1 + rng.standard_normal(shape, np.float32) / 10


def cosine(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return np.broadcast_to(rope_angles(np.arange(shape[1]), d["D"])[0], shape)


def sine(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return np.broadcast_to(rope_angles(np.arange(shape[1]), d["D"])[1], shape)


def weight(name: str, rows: str, columns: str) -> Operand:
    return Operand(name, f"{rows} {columns}", role="weight", fill=matrix)


X = Operand("x", "B S E")
ANGLES = (Operand("cos", "B S D", role="fixed", fill=cosine), Operand("sin", "B S D", role="fixed", fill=sine))
ATTENTION = (
    Operand("w", "E", role="weight", fill=gains),
    weight("wq", "Q", "E"),
    weight("wk", "C", "E"),
    weight("wv", "C", "E"),
    weight("wo", "E", "Q"),
)
MLP_WEIGHTS = (weight("gate", "F", "E"), weight("up", "F", "E"), weight("down", "E", "F"))
VALUES = ("normal", "positive", "spike", "equal", "one_hot")


def multiplies(d: Dims) -> int:
    """Multiply-adds per token of all projections, and of attention over all tokens."""
    return d["E"] * (2 * d["Q"] + 2 * d["C"] + 3 * d["F"]) + 2 * d["S"] * d["Q"]


SHAPES = Shapes(
    free={"B": span(0, 3), "S": around_tiles()},
    static=tuple({**g, "Q": g["H"] * g["D"], "C": g["K"] * g["D"]} for g in GEOMETRIES),
    size=lambda d: 2 * d["B"] * d["S"] * multiplies(d),
)
COST = Cost(
    lambda d: 2 * d["B"] * d["S"] * multiplies(d),
    lambda d, size: size * (multiplies(d) + 2 * d["B"] * d["S"] * d["E"]),
)


def layer(name: str, module: type[torch.nn.Module], reference: Callable[..., Bounded], *operands: Operand) -> OpSpec:
    causal = len(operands) > 4
    relations = (prefix("B", "S"), reversal("B"), *((CAUSALITY,) if causal else ()))
    return OpSpec(
        name=name,
        module=module,
        golden=partial(golden, layer=reference),
        bound=partial(bound, layer=reference),
        operands=operands,
        shapes=SHAPES,
        result="B S E",
        cost=COST,
        kind="layer",
        values=VALUES,
        specials=("zeros", "denormal", "infinite", "nan"),
        causal="S" if causal else "",
        properties=(THREADS, PACKED_PLAIN, *relations),
        quants=("fp32", *QUANTISED),
        quantised=partial(layer_in_mode, partial(golden, layer=reference), (THREADS, *relations)),
    )


SPECS = (
    layer("attention_block", AttentionBlock, partial(layers.attention_block, eps=EPS), X, *ANGLES, *ATTENTION),
    layer("mlp", Mlp, layers.mlp, X, *MLP_WEIGHTS),
    layer(
        "decoder_layer",
        DecoderLayer,
        partial(layers.decoder_layer, eps=EPS),
        X,
        *ANGLES,
        *ATTENTION,
        Operand("after", "E", role="weight", fill=gains),
        *MLP_WEIGHTS,
    ),
)
