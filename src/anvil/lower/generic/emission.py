"""Regions to rows: memory for the results, a kernel, its arguments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from anvil.kernels.base import Kernel
from anvil.lower.context import op_title
from anvil.lower.generic.groups import Group, build_node, group_key, resolve_inside
from anvil.lower.generic.kernel import generate
from anvil.lower.generic.nest import arrange
from anvil.lower.generic.num import Undefined
from anvil.lower.generic.operands import memrefs, scalars
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.values import Tensor
from anvil.lower.views import REMAPS, remapped
from anvil.runtime.plan import View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

_TITLE_LENGTH = 40
_KERNELS: dict[Hashable, Kernel] = {}  # generated in this process, by what they were generated from


def emit_copy(low: Lowering, node: Node, source: Tensor, target: View) -> None:
    """A row that writes ``source``, converted to the target's type, to ``target``, which has its sizes."""
    region, dtype = Region(), low.buffers[target.buffer].dtype
    value = region.map(lambda x: x.to(dtype), [source], source.shape, dtype)
    key = None if source.generator is not None else ("copy", source.dtype, dtype)
    emit_region(low, region, [region.spread(value)], [target], node, "copy", key)


def emit_group(low: Lowering, group: Group) -> dict[Node, Any]:
    """One row for all nodes of ``group``; the results that are needed outside of it.

    A result that is equal along a dimension is stored once and read again and again, but what a caller receives is
    written out.
    """
    region, values = Region(), dict[Node, Any]()

    def operand(source: Node) -> Operand:
        inside = resolve_inside(low.graph, values, source)
        return low.tensor(source) if inside is None else inside

    for node in group.nodes:
        values[node] = build_node(low.graph, region, node, operand)
    leaving = [
        (node, which, region.spread(value) if node in low.escaping else value)
        for node in group.nodes
        for which, value in _leaving(low, node, group, values[node])
    ]
    targets = [_memory(low, node, which or 0, value) for node, which, value in leaving]
    title = "_".join(dict.fromkeys(op_title(node.target) for node in group.nodes))[:_TITLE_LENGTH]
    key = group_key(low.graph, group)
    emit_region(low, region, [value for *_, value in leaving], targets, group.nodes[-1], title, key)
    results: dict[Node, Any] = {}
    for (node, which, value), target in zip(leaving, targets, strict=True):
        tensor = Tensor(_in_shape(target, value), value.dtype)
        if which is None:
            results[node] = tensor
        else:
            results.setdefault(node, {})[which] = tensor
    return results


def emit_region(
    low: Lowering,
    region: Region,
    values: Sequence[Value],
    targets: Sequence[View],
    node: Node,
    title: str,
    key: Hashable,
) -> None:
    """A row that computes ``values`` into ``targets``, which have their shapes but for dimensions without a loop.

    Regions of equal ``key`` have equal bodies, step by step; None equals nothing.
    """
    by_loop = [_by_loop(region, value, target) for value, target in zip(values, targets, strict=True)]
    nest = arrange(region, [value.step for value in values], by_loop)
    known = (key, nest.signature(), low.target.converts_f16)
    if key is None or known not in _KERNELS:
        try:
            _KERNELS[known] = generate(nest, low.target.converts_f16, title)
        except Undefined as error:
            raise low.unsupported(node, f"{title}: {error}; PyTorch has no such op in this element type") from error
    kernel = _KERNELS[known]
    low.emit(kernel, [*(operand.view for operand in memrefs(nest)), *scalars(nest)], node)


def _leaving(low: Lowering, node: Node, group: Group, value: Any) -> list[tuple[int | None, Value]]:
    """The results of ``node`` that are needed outside of ``group``, by number if it has several."""
    if isinstance(value, Value):
        return [(None, value)] if _needed_outside(low, node, group) else []
    picks = {user.args[1] for user in node.users if _needed_outside(low, user, group)}
    return [(which, value[which]) for which in sorted(picks)]


def _needed_outside(low: Lowering, node: Node, group: Group) -> bool:
    for user in node.users:
        if user.op == "call_function" and user.target in (*REMAPS, getitem):
            if _needed_outside(low, user, group):
                return True
        elif low.groups.get(user) is not group:
            return True
    return False


def _memory(low: Lowering, node: Node, which: int, value: Value) -> View:
    """New memory for ``value``: one element along dimensions that have no loop."""
    sizes = [1 if axis is None else size for axis, size in zip(value.axes, value.shape, strict=True)]
    return low.allocate(node, sizes, value.dtype, order=low.order(node, which))


def _by_loop(region: Region, value: Value, target: View) -> View:
    """``target``, in the value's PyTorch shape, with one size and stride per loop of the value."""
    loops = region.loops(value.step)
    pairs = zip(value.axes, target.strides, strict=True)
    strides = {region.loop(axis): stride for axis, stride in pairs if axis is not None}
    sizes = tuple(region.size(loop) for loop in loops)
    return View(target.buffer, target.offset, sizes, tuple(strides[loop] for loop in loops))


def _in_shape(target: View, value: Value) -> View:
    """``target`` in the shape of ``value``: along a dimension without a loop its one element stands for all."""
    return remapped(target, list(range(len(value.shape))), value.shape)
