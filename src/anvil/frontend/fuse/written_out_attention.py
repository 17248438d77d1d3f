"""Attention written out as ``softmax(mask(cap(q @ k.T * scale))) @ v`` -> ``anvil::attention``.

A softmax over a row without visible keys is NaN (penalty -inf) or uniform (finite penalty), the fused operation gives
zeros there: so the mask has to follow a rule under which every query sees a key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from anvil.frontend.fuse.attention import emit_attention
from anvil.frontend.index_formulas import Formulas
from anvil.frontend.masks import MaskRule, hidden_rule, hides, mask_rule
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, argument, calls, is_call, same_shape, same_size, shape_of, substitute

aten = torch.ops.aten


def _factor(node: Node) -> float | None:
    """The number a product or quotient multiplies its first operand by."""
    if is_call(node, aten.mul.Tensor) and isinstance(node.args[1], (int, float)):
        return float(node.args[1])
    if is_call(node, aten.div.Tensor) and isinstance(node.args[1], (int, float)) and not node.kwargs:
        return 1 / node.args[1]
    return None


def _unmask(scores: Node, formulas: Formulas) -> tuple[Node, MaskRule] | None:
    """The scores before their mask, and its rule; None when the mask follows none."""
    queries, keys = shape_of(scores)[2:]
    plain, rule = scores, MaskRule(causal=False)
    if is_call(scores, aten.add.Tensor) and isinstance(scores.args[1], Node) and not scores.kwargs:
        plain, mask = scores.args
        if not same_shape(shape_of(plain), shape_of(scores)):
            plain, mask = mask, plain
        rule = mask_rule(mask, queries, keys, formulas)
    elif is_call(scores, aten.masked_fill.Scalar, aten.where.ScalarOther):
        first, second, value = scores.args
        filled = scores.target is aten.masked_fill.Scalar
        plain, condition = (first, second) if filled else (second, first)
        if not hides(value, scores.meta["val"].dtype):
            return None
        rule = (hidden_rule if filled else mask_rule)(condition, queries, keys, formulas)
    fits = same_shape(shape_of(plain), shape_of(scores))
    return (plain, rule) if rule is not None and rule.every_row_sees and fits else None


def _uncap(scores: Node) -> tuple[Node, float | None]:
    """The scores before ``c * tanh(scores / c)``, and c."""
    cap = _factor(scores)
    if cap is None or not is_call(scores.args[0], aten.tanh.default):
        return scores, None
    inner = scores.args[0].args[0]
    if not is_call(inner, aten.div.Tensor) or inner.args[1] != cap or cap <= 0:
        return scores, None
    return inner.args[0], cap


def _product(scores: Any) -> tuple[Node, Node, float] | None:
    """(q, k, scale) of ``q @ k.T * scale``."""
    scale = _factor(scores)
    if scale is not None:
        scores = scores.args[0]
    if not is_call(scores, aten.matmul.default):
        return None
    q, turned = scores.args
    if len(shape_of(scores)) != 4 or not is_call(turned, aten.transpose.int) or turned.args[1:] != (2, 3):
        return None
    return q, turned.args[0], 1.0 if scale is None else scale


def _fuse(program: GraphProgram) -> None:
    formulas = Formulas()
    for node in calls(program.module.graph, aten.matmul.default):
        weights, v = node.args
        if not is_call(weights, aten.softmax.int) or argument(weights, "dim") != 3 or len(shape_of(v)) != 4:
            continue
        scores = weights.args[0]
        found = _unmask(scores, formulas) if argument(weights, "dtype") in (None, scores.meta["val"].dtype) else None
        if found is None:
            continue
        plain, rule = found
        uncapped, softcap = _uncap(plain)
        product = _product(uncapped)
        if product is None:
            continue
        q, k, scale = product
        if _plain(q, k, v):
            substitute(node, emit_attention(program, node, (q, k, v), None, scale, rule, softcap))


def _plain(q: Node, k: Node, v: Node) -> bool:
    """No operand is broadcast, and all have one type."""
    leading = [shape_of(item)[:2] for item in (q, k, v)]
    same = all(same_size(a, b) for other in leading[1:] for a, b in zip(leading[0], other, strict=True))
    return same and len({item.meta["val"].dtype for item in (q, k, v)}) == 1 and isinstance(leading[0][1], int)


FUSE_WRITTEN_OUT_ATTENTION = GraphPass("fuse_written_out_attention", _fuse)
