"""Decoder layers of the models that differ from LLaMA: biases (Qwen2), norms of heads (Qwen3), a window (Mistral)."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from assay.analysis import Analysis, Bounded
from assay.metamorphic import CAUSALITY, THREADS
from assay.reference.layers import heads, mlp
from assay.spec import Operand, OpSpec, load

layers = load(Path(__file__).with_name("layers.py"))
WINDOW = 3
EXTRA = {"qwen2": ("bq", "bk", "bv"), "qwen3": ("qn", "kn"), "mistral": ()}


class Layer(torch.nn.Module):
    """h = x + o(attention(norm(x))); h + mlp(norm(h)); what a model adds comes behind the weights all have."""

    def attend(self, x, cos, sin, w, wq, wk, wv, wo, *, biases=(None, None, None), norms=(None, None), window=None):
        batch, tokens, size = x.shape[0], x.shape[1], cos.shape[-1]
        n = layers.norm(x, w)
        q, k, v = (
            F.linear(n, p, b).view(batch, tokens, p.shape[0] // size, size).transpose(1, 2)
            for p, b in zip((wq, wk, wv), biases, strict=True)
        )
        q, k = (a if g is None else layers.norm(a, g) for a, g in zip((q, k), norms, strict=True))
        q, k = layers.rotate(q, cos, sin), layers.rotate(k, cos, sin)
        place = torch.arange(tokens)
        seen = place <= place[:, None]
        seen = seen if window is None else seen & (place > place[:, None] - window)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return F.linear(o.transpose(1, 2).reshape(batch, tokens, wq.shape[0]), wo)

    def close(self, h, after, gate, up, down):
        return h + layers.Mlp()(layers.norm(h, after), gate, up, down)


class Qwen2(Layer):
    def forward(self, x, cos, sin, w, wq, wk, wv, wo, after, gate, up, down, bq, bk, bv):
        return self.close(x + self.attend(x, cos, sin, w, wq, wk, wv, wo, biases=(bq, bk, bv)), after, gate, up, down)


class Qwen3(Layer):
    def forward(self, x, cos, sin, w, wq, wk, wv, wo, after, gate, up, down, qn, kn):
        return self.close(x + self.attend(x, cos, sin, w, wq, wk, wv, wo, norms=(qn, kn)), after, gate, up, down)


class Mistral(Layer):
    def forward(self, x, cos, sin, w, wq, wk, wv, wo, after, gate, up, down):
        return self.close(x + self.attend(x, cos, sin, w, wq, wk, wv, wo, window=WINDOW), after, gate, up, down)


def reference(
    run: Analysis, x: Bounded, cos: np.ndarray, sin: np.ndarray, w: np.ndarray, wq: np.ndarray, wk: np.ndarray,
    wv: np.ndarray, wo: np.ndarray, after: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray,
    *extra: np.ndarray, kind: str,
) -> Bounded:  # fmt: skip
    """The same on fp64 values with their bounds. A bias is one more term of the product's sum."""
    size, batch, tokens = cos.shape[-1], *x.value.shape[:2]
    given = dict(zip(EXTRA[kind], extra, strict=True))
    n = run.rms_norm(x, w, eps=layers.EPS)

    def projected(weight: np.ndarray, bias: str, norm: str) -> Bounded:
        y = run.linear(n, weight)
        if bias in given:
            y = run.add(y, run.exact(np.broadcast_to(given[bias], y.value.shape)))
        y = heads(y, size)
        return run.rms_norm(y, given[norm], eps=layers.EPS) if norm in given else y

    q, k = run.rope(projected(wq, "bq", "qn"), cos, sin), run.rope(projected(wk, "bk", "kn"), cos, sin)
    window = WINDOW if kind == "mistral" else 0
    o = run.attention(q, k, projected(wv, "bv", ""), np.zeros(batch, int), window=window)
    rows = o.moved(lambda a: a.swapaxes(1, 2).reshape(batch, tokens, len(wq)))
    h = run.add(x, run.linear(rows, wo))
    return run.add(h, mlp(run, run.rms_norm(h, after, eps=layers.EPS), gate, up, down))


def bias(rng: np.random.Generator, shape: tuple[int, ...], d: dict) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / 2


ALL = (layers.X, *layers.ANGLES, *layers.ATTENTION, Operand("after", "E", role="weight", fill=layers.gains))
VECTORS = {
    **{name: Operand(name, axis, role="weight", fill=bias) for name, axis in (("bq", "Q"), ("bk", "C"), ("bv", "C"))},
    **{name: Operand(name, "D", role="weight", fill=layers.gains) for name in ("qn", "kn")},
}


def spec(kind: str, module: type[Layer]) -> OpSpec:
    operands = (*ALL, *layers.MLP_WEIGHTS, *(VECTORS[name] for name in EXTRA[kind]))
    whole = layers.layer(f"decoder_layer_{kind}", module, partial(reference, kind=kind), *operands)
    return replace(whole, quants=("fp32",), quantised=None, properties=(THREADS, CAUSALITY))


SPECS = (spec("qwen2", Qwen2), spec("qwen3", Qwen3), spec("mistral", Mistral))
