"""Reshapes: batch and tokens stay dimensions of their own, or are flattened into one and taken apart again."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node

from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role
from anvil.frontend.index_formulas import size_formula
from anvil.graph.rewrite import shape_of

aten = torch.ops.aten


def reshape(build: Rebuild, node: Node) -> tuple[Node, Role]:
    x, sizes = node.args
    role = build.role(x)
    axes = _reshaped_axes(role.axes, shape_of(x), shape_of(node))
    if axes is None:
        build.refuse(node, "merges or splits the batch or token dimension")
    new_sizes = list(build.new(sizes))
    if role.lifted:
        new_sizes = [build.size(Axis.BATCH), *new_sizes]
    return build.emit(aten.reshape.default, build.new(x), new_sizes), role.with_axes(axes)


def _reshaped_axes(axes: tuple[Axis, ...], old: tuple[Any, ...], new: tuple[Any, ...]) -> list[Axis] | None:
    """The axes after a reshape; None when one of them is no longer a dimension of its own."""
    result = [Axis.PLAIN] * len(new)
    for old_dims, new_dims in _groups(old, new):
        labels = [axes[dim] for dim in old_dims]
        marked = [label for label in labels if label is not Axis.PLAIN]
        sizes_before = [size_formula(old[dim]) for dim in old_dims]
        sizes_after = [size_formula(new[dim]) for dim in new_dims]
        if not marked:
            continue
        if sizes_before == sizes_after:
            after = labels
        elif labels == [Axis.BATCH, Axis.TOKEN] and len(new_dims) == 1:
            after = [Axis.BOTH]
        elif labels == [Axis.BOTH] and len(new_dims) == 2 and all(size.is_Symbol for size in sizes_after):
            after = [Axis.BATCH, Axis.TOKEN]
        else:
            return None
        for dim, label in zip(new_dims, after, strict=True):
            result[dim] = label
    return result


def _groups(old: tuple[Any, ...], new: tuple[Any, ...]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions, not of size 1, with equal numbers of elements on both sides."""
    before, after = ([dim for dim, size in enumerate(shape) if not _is_one(size)] for shape in (old, new))
    groups: list[tuple[list[int], list[int]]] = []
    while before or after:
        run_before, run_after = [], []
        left, right = sympy.Integer(1), sympy.Integer(1)
        while (before or after) and (left != right or not run_before or not run_after):
            if before and (not after or not run_before or _divides(left, right)):
                run_before.append(before.pop(0))
                left = sympy.expand(left * size_formula(old[run_before[-1]]))
            else:
                run_after.append(after.pop(0))
                right = sympy.expand(right * size_formula(new[run_after[-1]]))
        groups.append((run_before, run_after))
    return groups


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _divides(part: sympy.Expr, whole: sympy.Expr) -> bool:
    """Whether ``part`` is a proper divisor of ``whole``, so that its run has to go on."""
    quotient = sympy.cancel(whole / part)
    return quotient != 1 and sympy.denom(quotient) == 1
