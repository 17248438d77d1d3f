"""Decoder layer of Gemma 2: capped scores, gains of 1 + w, a norm before and one after each half, a gated gelu."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from assay.analysis import Analysis, Bounded
from assay.metamorphic import CAUSALITY, THREADS
from assay.reference.layers import heads
from assay.spec import Operand, load
from assay.strategies.shapes import Dims

layers = load(Path(__file__).with_name("layers.py"))
gelus = load(Path(__file__).with_name("gelu.py"))
CAP = 2.0
#: Largest slope of gelu in its tanh form, rounded up.
SLOPE = 1.14


def norm(x, w):
    return layers.norm(x, 1.0 + w)


class Gemma2(torch.nn.Module):
    def forward(self, x, cos, sin, w, wq, wk, wv, wo, after, before, gate, up, down, last):
        h = x + norm(self.attend(norm(x, w), cos, sin, wq, wk, wv, wo), after)
        n = norm(h, before)
        inner = F.gelu(F.linear(n, gate), approximate="tanh") * F.linear(n, up)
        return h + norm(F.linear(inner, down), last)

    def attend(self, n, cos, sin, wq, wk, wv, wo):
        batch, tokens, size = n.shape[0], n.shape[1], cos.shape[-1]
        q, k, v = (F.linear(n, p).view(batch, tokens, len(p) // size, size).transpose(1, 2) for p in (wq, wk, wv))
        q, k = layers.rotate(q, cos, sin), layers.rotate(k, cos, sin)
        k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], 1) for a in (k, v))
        scores = CAP * torch.tanh(q @ k.transpose(2, 3) / math.sqrt(size) / CAP)
        place = torch.arange(tokens)
        o = torch.softmax(scores.masked_fill(place > place[:, None], -torch.inf), dim=-1) @ v
        return F.linear(o.transpose(1, 2).reshape(batch, tokens, len(wq)), wo)


def reference(
    run: Analysis, x: Bounded, cos: np.ndarray, sin: np.ndarray, w: np.ndarray, wq: np.ndarray, wk: np.ndarray,
    wv: np.ndarray, wo: np.ndarray, after: np.ndarray, before: np.ndarray, gate: np.ndarray, up: np.ndarray,
    down: np.ndarray, last: np.ndarray,
) -> Bounded:  # fmt: skip
    """The same on fp64 values with their bounds."""

    def normed(a: Bounded, weight: np.ndarray) -> Bounded:
        """One rounding more than a norm has: that of 1 + w."""
        y = run.rms_norm(a, 1.0 + weight, eps=layers.EPS)
        return Bounded(y.value, y.error + run.setting.acc.u * np.abs(y.value))

    size, (batch, tokens) = cos.shape[-1], x.value.shape[:2]
    n = normed(x, w)
    q, k = (run.rope(heads(run.linear(n, p), size), cos, sin) for p in (wq, wk))
    o = run.attention(q, k, heads(run.linear(n, wv), size), np.zeros(batch, int), softcap=CAP)
    rows = o.moved(lambda a: a.swapaxes(1, 2).reshape(batch, tokens, len(wq)))
    h = run.add(x, normed(run.linear(rows, wo), after))
    n = normed(h, before)
    return run.add(h, normed(run.linear(gated(run, run.linear(n, gate), run.linear(n, up)), down), last))


def gated(run: Analysis, gate: Bounded, up: Bounded) -> Bounded:
    """gelu(gate)·up: (SLOPE·e_gate + gelu's own)·(|up| + e_up) + |gelu(gate)|·e_up, and the product's rounding."""
    value = gelus.gelu_tanh(gate.value)
    own = gelus.bound(run.setting, value, gate.value)
    product = value * up.value
    error = (SLOPE * gate.error + own) * (np.abs(up.value) + up.error) + np.abs(value) * up.error
    return Bounded(product, error + run.setting.acc.u * np.abs(product))


def offsets(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / 10


def gain(name: str) -> Operand:
    return Operand(name, "E", role="weight", fill=offsets)


OPERANDS = (layers.X, *layers.ANGLES, gain("w"), *layers.ATTENTION[1:], gain("after"), gain("before"))
WHOLE = layers.layer("decoder_layer_gemma2", Gemma2, reference, *OPERANDS, *layers.MLP_WEIGHTS, gain("last"))
SPECS = (replace(WHOLE, quants=("fp32",), quantised=None, properties=(THREADS, CAUSALITY)),)
