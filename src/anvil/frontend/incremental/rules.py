"""Which rule covers which operation. What has no rule here, and is not pointwise, is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from anvil.frontend.incremental import attention, choosing, pointwise, position, views
from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.reshape import reshape
from anvil.frontend.incremental.roles import Role

aten, anvil = torch.ops.aten, torch.ops.anvil
Rule = Callable[[Rebuild, Node], tuple[Node, Role]]

_RULES: dict[Any, Rule] = {
    aten.arange.default: position.position,
    aten.arange.start: position.position,
    aten.arange.start_step: position.position,
    aten.cumsum.default: position.position,
    aten.embedding.default: position.embedding,
    aten.index.Tensor: position.gather_rows,
    aten.linear.default: pointwise.linear,
    aten.matmul.default: pointwise.matmul,
    aten.mean.dim: pointwise.within_token,
    aten.sum.dim_IntList: pointwise.within_token,
    aten.amax.default: pointwise.within_token,
    aten.amin.default: pointwise.within_token,
    aten.softmax.int: pointwise.within_token,
    aten.log_softmax.int: pointwise.within_token,
    aten.argmax.default: pointwise.within_token,
    aten.rms_norm.default: pointwise.within_token,
    aten.layer_norm.default: pointwise.within_token,
    anvil.rms_norm.default: pointwise.within_token,
    anvil.swiglu.default: pointwise.pointwise,
    aten._to_copy.default: pointwise.pointwise,
    anvil.attention.default: attention.attention,
    anvil.rope.default: attention.rope,
    anvil.expert_linear.default: choosing.expert_linear,
    aten.topk.default: choosing.topk,
    operator.getitem: choosing.getitem,
    aten.gather.default: choosing.by_index,
    aten.scatter.value: choosing.by_index,
    aten.scatter.src: choosing.by_index,
    aten.reshape.default: reshape,
    aten.transpose.int: views.transpose,
    aten.permute.default: views.permute,
    aten.unsqueeze.default: views.unsqueeze,
    aten.squeeze.dims: views.squeeze,
    aten.select.int: views.select,
    aten.slice.Tensor: views.slice_part,
    aten.cat.default: views.cat,
    aten.expand.default: views.expand,
    aten.full.default: views.creation,
}


def rule_for(target: Any) -> Rule | None:
    """The rule of an operation; any pointwise operation of PyTorch has one."""
    if target in _RULES:
        return _RULES[target]
    return pointwise.pointwise if torch.Tag.pointwise in getattr(target, "tags", ()) else None
