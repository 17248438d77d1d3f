"""Fusion: each pattern is found in its spellings, and not in what only looks like it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    assert_same_function,
    one_thread,  # noqa: F401
    run,
)

from anvil.frontend.capture import capture
from anvil.frontend.stages import each_stage
from anvil.graph.describe import op_name

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(2, 5, 8, generator=GENERATOR)
W = torch.randn(8, generator=GENERATOR)
HEADS = torch.randn(2, 4, 5, 8, generator=GENERATOR)  # [B, H, S, D]
KEYS = torch.randn(2, 2, 5, 8, generator=GENERATOR)
ANGLES = torch.randn(1, 5, 8, generator=GENERATOR)
BATCH = ({0: "B"},)


def fused(function, *examples):
    """The last stage; every stage has been compared with eager on the way."""
    want = function(*examples)
    for program in each_stage(capture(function, examples)):
        assert_same_function(run(program, *examples), want)
    return program


def count(program, name):
    return sum(op_name(node) == name for node in program.module.graph.nodes)


# -- rms_norm --------------------------------------------------------------------------------------------------------


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True)


RMS_NORMS = {
    "weight first": lambda x, w: w * (x * torch.rsqrt(mean_square(x) + 1e-6)),
    "weight last": lambda x, w: x * torch.rsqrt(mean_square(x) + 1e-6) * w,
    "weight inside": lambda x, w: x * w * torch.rsqrt(mean_square(x) + 1e-6),
    "scale first": lambda x, w: torch.rsqrt(1e-6 + mean_square(x)) * x * w,
    "square": lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w,
    "product": lambda x, w: x * torch.rsqrt((x * x).mean((2,), keepdim=True) + 1e-6) * w,
    "divided by root": lambda x, w: x / torch.sqrt(mean_square(x) + 1e-6) * w,
    "reciprocal of root": lambda x, w: x * (1 / torch.sqrt(mean_square(x) + 1e-6)) * w,
    "power": lambda x, w: x * (mean_square(x) + 1e-6) ** -0.5 * w,
    "sum over length": lambda x, w: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 8 + 1e-6) * w,
    "cast up and down": lambda x, w: w * (x.float() * torch.rsqrt(mean_square(x.float()) + 1e-6)).to(x.dtype),
    "weight plus one": lambda x, w: x * torch.rsqrt(mean_square(x) + 1e-6) * (1 + w),
    "native": lambda x, w: F.rms_norm(x, (8,), w, 1e-6),
    "native without eps": lambda x, w: F.rms_norm(x, (8,), w),
}


@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norm_is_found(name):
    program = fused(RMS_NORMS[name], X, W)
    assert count(program, "anvil.rms_norm") == 1
    (node,) = program.module.graph.find_nodes(op="call_function", target=torch.ops.anvil.rms_norm.default)
    assert node.args[2] == (2**-23 if name == "native without eps" else 1e-6)


NOT_RMS_NORMS = {
    "no eps": lambda x, w: x * torch.rsqrt(mean_square(x)) * w,
    "negative eps": lambda x, w: x * torch.rsqrt(mean_square(x) - 1e-6) * w,
    "eps outside the root": lambda x, w: x / (torch.sqrt(mean_square(x)) + 1e-6) * w,
    "eps scaled": lambda x, w: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) * w,
    "sum over another length": lambda x, w: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 7 + 1e-6) * w,
    "mean of another tensor": lambda x, w: x * torch.rsqrt(mean_square(x + 1) + 1e-6) * w,
    "another tensor scaled": lambda x, w: (x + 1) * torch.rsqrt(mean_square(x) + 1e-6) * w,
    "mean over tokens": lambda x, w: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * w,
    "mean over two dimensions": lambda x, w: x * torch.rsqrt(x.pow(2).mean((1, 2), keepdim=True) + 1e-6) * w,
    "mean absolute": lambda x, w: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6) * w,
    "root instead of its inverse": lambda x, w: x * torch.sqrt(mean_square(x) + 1e-6) * w,
    "no weight": lambda x, w: x * torch.rsqrt(mean_square(x) + 1e-6),
    "number for a weight": lambda x, w: x * torch.rsqrt(mean_square(x) + 1e-6) * 2.0,
    "centred": lambda x, w: F.layer_norm(x, (8,), w),
}


@pytest.mark.parametrize("name", NOT_RMS_NORMS)
def test_what_is_not_rms_norm_stays(name):
    assert count(fused(NOT_RMS_NORMS[name], X, W), "anvil.rms_norm") == 0


def test_a_weight_per_token_is_not_a_weight():
    program = fused(lambda x, w: x * torch.rsqrt(mean_square(x) + 1e-6) * w, X, torch.randn(5, 1))
    assert count(program, "anvil.rms_norm") == 0


def test_a_norm_computed_in_fewer_bits_is_not_widened():
    def narrow(x, w):
        short = x.to(torch.float32)
        return w * (short * torch.rsqrt(mean_square(short) + 1e-6)).to(torch.float64)

    assert count(fused(narrow, X.double(), W.double()), "anvil.rms_norm") == 0


def test_half_precision_norms_keep_the_order_of_their_roundings():
    def cast_then_weight(x, w):
        wide = x.float()
        return w * (wide * torch.rsqrt(mean_square(wide) + 1e-6)).to(x.dtype)

    x, w = X.to(torch.bfloat16), W.to(torch.bfloat16)
    programs = list(each_stage(capture(cast_then_weight, (x, w))))
    assert count(programs[-1], "anvil.rms_norm") == 0  # the kernel computes in float32 alone
    assert torch.equal(run(programs[-1], x, w), cast_then_weight(x, w))


# -- rope ------------------------------------------------------------------------------------------------------------


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def halves(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


ROPES = {
    "rotate half": lambda x, t: x * t.cos()[:, None] + rotate_half(x) * t.sin()[:, None],
    "sine first": lambda x, t: t.sin()[:, None] * rotate_half(x) + t.cos()[:, None] * x,
    "tables of one row each": lambda x, t: x * t[0].cos() + rotate_half(x) * t[0].sin(),
    "minus one": lambda x, t: x * t.cos()[:, None] + torch.cat((x[..., 4:] * -1, x[..., :4]), -1) * t.sin()[:, None],
    "heads third": lambda x, t: (
        x.transpose(1, 2) * t.cos()[:, :, None] + rotate_half(x.transpose(1, 2)) * t.sin()[:, :, None]
    ),
    "half tables": lambda x, t: halves(x, t[:, None, :, :4].cos(), t[:, None, :, :4].sin()),
    "half tables, heads third": lambda x, t: halves(
        x.transpose(1, 2), t[0, :, None, :4].cos(), t[0, :, None, :4].sin()
    ),
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_is_found(name):
    assert count(fused(ROPES[name], HEADS, ANGLES), "anvil.rope") == 1


def test_rope_takes_a_table_per_row():
    angles = torch.randn(2, 5, 8, generator=GENERATOR)
    assert count(fused(ROPES["rotate half"], HEADS, angles), "anvil.rope") == 1


def interleaved(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


NOT_ROPES = {
    "neighbouring pairs": lambda x, t: x * t.cos()[:, None] + interleaved(x) * t.sin()[:, None],
    "halves swapped": lambda x, t: x * t.cos()[:, None] + torch.cat((x[..., :4], -x[..., 4:]), -1) * t.sin()[:, None],
    "other half negated": lambda x, t: (
        x * t.cos()[:, None] + torch.cat((x[..., 4:], -x[..., :4]), -1) * t.sin()[:, None]
    ),
    "no sign": lambda x, t: x * t.cos()[:, None] + torch.cat((x[..., 4:], x[..., :4]), -1) * t.sin()[:, None],
    "unequal parts": lambda x, t: x * t.cos()[:, None] + torch.cat((-x[..., 3:], x[..., :3]), -1) * t.sin()[:, None],
    "parts that overlap": lambda x, t: (
        x * t.cos()[:, None] + torch.cat((-x[..., 3:7], x[..., :4]), -1) * t.sin()[:, None]
    ),
    "rotated another tensor": lambda x, t: x * t.cos()[:, None] + rotate_half(x + 1) * t.sin()[:, None],
    "difference": lambda x, t: x * t.cos()[:, None] - rotate_half(x) * t.sin()[:, None],
    "a table per head": lambda x, t: x * t.cos()[:, None] + rotate_half(x) * t.sin()[:, None].expand(1, 4, 5, 8),
    "half tables turned the other way": lambda x, t: torch.cat(
        (
            x[..., :4] * t[:, None, :, :4].cos() + x[..., 4:] * t[:, None, :, :4].sin(),
            x[..., 4:] * t[:, None, :, :4].cos() - x[..., :4] * t[:, None, :, :4].sin(),
        ),
        -1,
    ),
    "half tables that differ": lambda x, t: torch.cat(
        (
            x[..., :4] * t[:, None, :, :4].cos() - x[..., 4:] * t[:, None, :, :4].sin(),
            x[..., 4:] * t[:, None, :, 4:].cos() + x[..., :4] * t[:, None, :, 4:].sin(),
        ),
        -1,
    ),
}


@pytest.mark.parametrize("name", NOT_ROPES)
def test_what_is_not_half_split_rope_stays(name):
    assert count(fused(NOT_ROPES[name], HEADS, ANGLES), "anvil.rope") == 0


# -- attention and grouped heads -------------------------------------------------------------------------------------


def repeat_kv(x, copies=2):
    batch, heads, keys, width = x.shape
    return x[:, :, None].expand(batch, heads, copies, keys, width).reshape(batch, heads * copies, keys, width)


def tile_kv(x, copies=2):
    batch, heads, keys, width = x.shape
    return x[:, None].expand(batch, copies, heads, keys, width).reshape(batch, heads * copies, keys, width)


GROUPED = {
    "expand and reshape": repeat_kv,
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "repeat_interleave from the end": lambda x: x.repeat_interleave(2, dim=-3),
}
NOT_GROUPED = {
    "tile by expand": tile_kv,
    "tile by repeat": lambda x: x.repeat(1, 2, 1, 1),
    "keys repeated": lambda x: x.repeat_interleave(2, dim=2).reshape(2, 4, 5, 8),
}


def attention_call(program):
    (node,) = program.module.graph.find_nodes(op="call_function", target=torch.ops.anvil.attention.default)
    return node.args


@pytest.mark.parametrize("name", GROUPED)
def test_repeated_heads_are_read_in_place(name):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, GROUPED[name](k), GROUPED[name](v), is_causal=True)

    _, k, v, *_ = attention_call(fused(attend, HEADS, KEYS, KEYS + 1))
    assert (k.name, v.name) == ("k", "v")


@pytest.mark.parametrize("name", NOT_GROUPED)
def test_tiled_heads_are_not_folded(name):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, NOT_GROUPED[name](k), NOT_GROUPED[name](v), is_causal=True)

    _, k, v, *_ = attention_call(fused(attend, HEADS, KEYS, KEYS + 1))
    assert k.meta["val"].shape[1] == v.meta["val"].shape[1] == 4


def test_keys_repeated_but_values_tiled_are_not_folded():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, repeat_kv(k), tile_kv(v))

    assert attention_call(fused(attend, HEADS, KEYS, KEYS + 1))[1].meta["val"].shape[1] == 4


def test_native_grouping_is_understood():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert attention_call(fused(attend, HEADS, KEYS, KEYS + 1))[3:] == (None, 1 / math.sqrt(8), False, None, None, 0)


def test_scale_and_causality_are_taken_over():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)

    assert attention_call(fused(attend, HEADS, HEADS, HEADS))[3:] == (None, 0.25, True, None, None, 0)


def test_an_arbitrary_mask_stays_an_operand():
    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    mask = torch.rand(5, 5, generator=GENERATOR) > 0.4
    mask[2] = False  # a query without keys
    arguments = attention_call(fused(attend, HEADS, HEADS, HEADS, mask))
    assert arguments[3].name == "mask"
    assert arguments[5:] == (False, None, None, 0)


def test_dropout_is_not_attention():
    def attend(q):
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    program = list(each_stage(capture(attend, (HEADS,))))[-1]
    assert count(program, "anvil.attention") == 0


def causal_penalty(value):
    return torch.full((5, 5), value).triu(1)


WRITTEN_OUT = {
    "no mask": (lambda s: s, None),
    "added -inf": (lambda s: s + causal_penalty(-torch.inf), None),
    "added lowest": (lambda s: s + causal_penalty(torch.finfo(torch.float32).min), None),
    "masked fill": (lambda s: s.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf), None),
    "where": (lambda s: torch.where(torch.ones(5, 5, dtype=torch.bool).tril(), s, -torch.inf), None),
    "capped": (lambda s: torch.tanh(s / 5.0) * 5.0 + causal_penalty(-torch.inf), 5.0),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_attention_written_out_is_found(name):
    masked, softcap = WRITTEN_OUT[name]

    def attend(q, k, v):
        scores = masked(q @ k.transpose(2, 3) / math.sqrt(8))
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

    arguments = attention_call(fused(attend, HEADS, HEADS + 1, HEADS - 1))
    assert arguments[3:] == (None, pytest.approx(8**-0.5), name != "no mask", None, softcap, 0)


NOT_ATTENTION = {
    "cap after the mask": lambda s: torch.tanh((s + causal_penalty(-1e9)) / 5.0) * 5.0,
    "two caps": lambda s: torch.tanh(s / 5.0) * 4.0,
    "small penalty": lambda s: s + causal_penalty(-10.0),
    "rows without keys": lambda s: s.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(0), -1e38 * 3),
    "every second key": lambda s: s.masked_fill((torch.arange(5)[:, None] + torch.arange(5)) % 2 == 1, -torch.inf),
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_not_attention_stays_written_out(name):
    def attend(q, k, v):
        return torch.softmax(NOT_ATTENTION[name](q @ k.transpose(2, 3)), -1) @ v

    assert count(fused(attend, HEADS, HEADS + 1, HEADS - 1), "anvil.attention") == 0


def test_a_softmax_over_queries_is_not_attention():
    def attend(q, k, v):
        return torch.softmax(q @ k.transpose(2, 3), 2) @ v

    assert count(fused(attend, HEADS, HEADS + 1, HEADS - 1), "anvil.attention") == 0


# -- swiglu and linear -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda g, u: F.silu(g) * u, 1),
        (lambda g, u: u * F.silu(g), 1),
        (lambda g, u: g * torch.sigmoid(g) * u, 1),
        (lambda g, u: torch.sigmoid(g) * u, 0),
        (lambda g, u: F.gelu(g) * u, 0),
        (lambda g, u: F.silu(g) + u, 0),
        (lambda g, u: F.silu(g) * u[:, :1], 0),
        (lambda g, u: u * torch.sigmoid(g) * u, 0),
    ],
)
def test_swiglu_is_silu_times_up_of_one_shape(function, found):
    assert count(fused(function, X, X.flip(1)), "anvil.swiglu") == found


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x, w: x @ w.T, 1),
        (lambda x, w: torch.addmm(torch.ones(3), x[0], w.t()), 1),
        (lambda x, w: torch.mm(x[0], w.t()), 1),
        (lambda x, w: x[..., :3] @ w, 0),
    ],
)
def test_products_with_a_transposed_matrix_are_linear(function, found):
    weight = torch.randn(3, 8, generator=GENERATOR)
    assert count(fused(function, X, weight), "aten.linear") == found
