"""Attention of types that no kernel takes is written out as the operations it is made of."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_frontend_fusion import GENERATOR, HEADS, KEYS, count, fused
from tiny_models import assert_same_function, run
from tiny_models import one_thread as one_thread

from anvil.frontend.fuse.other_types_attention import WRITE_OUT_ATTENTION


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_attention_of_other_types_than_f32_is_written_out_again(additive, capped):
    mask = torch.rand(2, 1, 5, 5, generator=GENERATOR) > 0.5
    mask[1, 0, 3] = False  # a query without keys
    given = torch.where(mask, 0.25, -torch.inf).double() if additive else mask
    heads, keys = HEADS.double(), KEYS.double()

    def attend(q, k, v, mask):
        return torch.ops.anvil.attention(q, k, v, mask, 0.3, False, None, 2.0 if capped else None, 0)

    program = fused(attend, heads, keys, keys + 1, given)
    assert count(program, "anvil.attention") == 1
    written = WRITE_OUT_ATTENTION(program)
    assert count(written, "anvil.attention") == 0
    assert_same_function(run(written, heads, keys, keys + 1, given), attend(heads, keys, keys + 1, given))


@pytest.mark.parametrize("window", [None, 2])
def test_causal_attention_in_double_is_written_out_with_its_frontier(window):
    heads, keys = HEADS.double(), KEYS.double()

    def attend(q, k, v):
        return torch.ops.anvil.attention(q, k, v, None, 0.3, True, window, None, 1)

    program = fused(attend, heads[:, :, :3], keys, keys + 1)
    written = WRITE_OUT_ATTENTION(program)
    assert count(written, "anvil.attention") == 0
    assert_same_function(run(written, heads[:, :, :3], keys, keys + 1), attend(heads[:, :, :3], keys, keys + 1))


def test_attention_in_f32_keeps_its_mask():
    mask = torch.rand(5, 5, generator=GENERATOR) > 0.4
    program = fused(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), HEADS, HEADS, HEADS, mask)
    assert count(WRITE_OUT_ATTENTION(program), "anvil.attention") == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_attention_of_narrow_types_is_that_of_f32_rounded_once(dtype):
    heads, keys = HEADS.to(dtype), KEYS.to(dtype)
    mask = torch.zeros(5, 5, dtype=dtype).masked_fill(torch.rand(5, 5, generator=GENERATOR) > 0.6, -torch.inf)

    def attend(q, k, v, mask):
        return torch.ops.anvil.attention(q, k, v, mask, 0.3, False, None, None, 0)

    program = WRITE_OUT_ATTENTION(fused(attend, heads, keys, keys + 1, mask))
    assert count(program, "anvil.attention") == 1
    want = attend(*(x.float() for x in (heads, keys, keys + 1, mask))).to(dtype)
    assert torch.equal(run(program, heads, keys, keys + 1, mask), want)
