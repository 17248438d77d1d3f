"""Masks: the rule that a mask tensor follows, from how it was computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    assert_same_function,
    one_thread,  # noqa: F401
    run,
)

from anvil.frontend.capture import capture
from anvil.frontend.index_formulas import Formulas
from anvil.frontend.masks import mask_rule
from anvil.frontend.stages import fuse

INF = float("inf")
LOWEST = torch.finfo(torch.float32).min


def rule_of(mask):
    """The rule of ``mask(queries, keys)`` as text, for symbolic sizes; None when there is none."""

    def attend(q, k):
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask(q.shape[2], k.shape[2]))

    q, k = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 7, 4)
    program = fuse(capture(attend, (q, k), ({2: "S"}, {2: "T"})))
    (node,) = program.module.graph.find_nodes(op="call_function", target=torch.ops.anvil.attention.default)
    for sizes in ((5, 7), (3, 3), (1, 6), (6, 2)):
        q, k = torch.randn(1, 1, sizes[0], 4), torch.randn(1, 1, sizes[1], 4)
        assert_same_function(run(program, q, k) + 1, attend(q, k) + 1)  # + 1: rows without keys are zero
    _, _, _, operand, _, causal, window, _, offset = node.args
    if operand is not None:
        return None
    shift = offset.meta["val"] if isinstance(offset, torch.fx.Node) else offset
    return f"causal {shift}" + (f" window {window}" if window is not None else "") if causal else "all"


def below(s, t):
    return torch.arange(t)[None, :] <= torch.arange(s)[:, None]


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (below, "causal 0"),
        (lambda s, t: torch.arange(s)[:, None] >= torch.arange(t), "causal 0"),
        (lambda s, t: ~(torch.arange(t) > torch.arange(s)[:, None]), "causal 0"),
        (lambda s, t: torch.arange(t) < torch.arange(s)[:, None] + 1, "causal 0"),
        (lambda s, t: torch.arange(t) <= torch.arange(1, s + 1)[:, None], "causal 1"),
        (lambda s, t: torch.arange(t) < torch.arange(s)[:, None], "causal -1"),
        (lambda s, t: torch.arange(t) <= torch.arange(s)[:, None] + (t - s), "causal -S + T"),
        (lambda s, t: torch.arange(t) - torch.arange(s)[:, None] <= 2, "causal 2"),
        (lambda s, t: torch.ones(s, t, dtype=torch.bool).tril(), "causal 0"),
        (lambda s, t: torch.ones(s, t, dtype=torch.bool).tril(1), "causal 1"),
        (lambda s, t: torch.ones(s, t, dtype=torch.bool).triu(1).logical_not(), "causal 0"),
        (lambda s, t: torch.zeros(s, t).masked_fill(~below(s, t), -INF), "causal 0"),
        (lambda s, t: torch.full((s, t), -INF).triu(1), "causal 0"),
        (lambda s, t: torch.full((s, t), LOWEST).triu(2), "causal 1"),
        (lambda s, t: torch.where(below(s, t), 0.0, -INF), "causal 0"),
        (lambda s, t: below(s, t) & (torch.arange(t) > torch.arange(s)[:, None] - 3), "causal 0 window 3"),
        (lambda s, t: below(s, t) & (torch.arange(s)[:, None] - torch.arange(t) < 3), "causal 0 window 3"),
        (lambda s, t: torch.ones(s, t, dtype=torch.bool).tril().triu(-3), "causal 0 window 4"),
        (lambda s, t: below(s, t) & (torch.arange(t) >= 0), "causal 0"),
        (lambda s, t: below(s, t) & (torch.arange(t) < t), "causal 0"),
        (lambda s, t: below(s, t)[None, None].expand(1, 1, s, t), "causal 0"),
        (lambda s, t: torch.arange(t)[None] <= torch.arange(s).view(-1, 1), "causal 0"),
        (lambda s, t: torch.arange(t)[torch.arange(t)[None]] <= torch.arange(s)[torch.arange(s)[:, None]], "causal 0"),
        (lambda s, t: torch.ones(s, t, dtype=torch.bool), "all"),
        (lambda s, t: torch.zeros(s, t), "all"),
    ],
)
def test_masks_are_recognised(mask, rule):
    assert rule_of(mask) == rule


@pytest.mark.parametrize(
    "mask",
    [
        lambda s, t: torch.arange(t) >= torch.arange(s)[:, None],  # sees the future only
        lambda s, t: (torch.arange(t) - torch.arange(s)[:, None]).abs() < 3,  # a band
        lambda s, t: torch.arange(t)[None] <= 2 * torch.arange(s)[:, None],  # another slope
        lambda s, t: torch.arange(t)[None] // 2 <= torch.arange(s)[:, None] // 2,  # blocks
        lambda s, t: below(s, t) | (torch.arange(t) == 0),  # keeps the first key
        lambda s, t: below(s, t) & (torch.arange(t) != 1),  # drops one key
        lambda s, t: below(s, t) & (torch.arange(t) < 4),  # a fixed number of keys
        lambda s, t: torch.where(below(s, t), 0.0, -10.0),  # a penalty that hides nothing
        lambda s, t: torch.where(below(s, t), 1.0, -INF),  # a bonus
        lambda s, t: -0.5 * (torch.arange(s)[:, None] - torch.arange(t)).abs(),  # distance bias
        lambda s, t: torch.where(torch.arange(t) < torch.arange(s)[:, None], 0.0, LOWEST),  # finite, row 0 sees nothing
    ],
)
def test_other_masks_stay_tensors(mask):
    assert rule_of(mask) is None


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    offset=st.integers(-2, 3),
    window=st.one_of(st.none(), st.integers(1, 4)),
    flipped=st.booleans(),
    additive=st.booleans(),
)
def test_offset_and_window_are_read_off_any_spelling(offset, window, flipped, additive):
    def mask(s, t):
        query, key = torch.arange(s)[:, None] + offset, torch.arange(t)[None]
        visible = query >= key if flipped else key <= query
        if window is not None:
            visible = (key > query - window) & visible if flipped else visible & (query - key < window)
        return torch.where(visible, 0.0, -INF) if additive else visible

    assert rule_of(mask) == f"causal {offset}" + (f" window {window}" if window else "")


def test_a_mask_from_data_has_no_rule():
    program = fuse(capture(lambda x: x.cumsum(-1) > 0, (torch.ones(4, 4),)))
    (mask,) = program.module.graph.output_node().args[0]
    assert mask_rule(mask, 4, 4, Formulas()) is None
