"""Views: the axes move with the dimensions. A lifted value has its batch in front, so its dimensions count from one."""

from __future__ import annotations

import torch
from torch.fx import Node

from anvil.frontend.incremental.pointwise import lower
from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role
from anvil.graph.rewrite import shape_of

aten = torch.ops.aten
Result = tuple[Node, Role]


def transpose(build: Rebuild, node: Node) -> Result:
    x, first, second = node.args
    role = build.role(x)
    axes = list(role.axes)
    axes[first], axes[second] = axes[second], axes[first]
    shift = int(role.lifted)
    return build.emit(aten.transpose.int, build.new(x), first + shift, second + shift), role.with_axes(axes)


def permute(build: Rebuild, node: Node) -> Result:
    x, order = node.args
    role = build.role(x)
    dims = [0, *(dim + 1 for dim in order)] if role.lifted else list(order)
    return build.emit(aten.permute.default, build.new(x), dims), role.with_axes([role.axes[dim] for dim in order])


def unsqueeze(build: Rebuild, node: Node) -> Result:
    x, dim = node.args
    role = build.role(x)
    axes = [*role.axes[:dim], Axis.PLAIN, *role.axes[dim:]]
    return build.emit(aten.unsqueeze.default, build.new(x), dim + role.lifted), role.with_axes(axes)


def squeeze(build: Rebuild, node: Node) -> Result:
    x, dims = node.args
    role = build.role(x)
    axes = [axis for dim, axis in enumerate(role.axes) if dim not in dims]
    return build.emit(aten.squeeze.dims, build.new(x), [dim + role.lifted for dim in dims]), role.with_axes(axes)


def select(build: Rebuild, node: Node) -> Result:
    x, dim, index = node.args
    role = build.role(x)
    if role.axes[dim] is not Axis.PLAIN:
        build.refuse(node, f"picks one {role.axes[dim].value} row")
    axes = [axis for other, axis in enumerate(role.axes) if other != dim]
    return build.emit(aten.select.int, build.new(x), dim + role.lifted, build.new(index)), role.with_axes(axes)


def slice_part(build: Rebuild, node: Node) -> Result:
    """A part of a plain dimension, or the first rows of a table, one per token."""
    x, dim, start, end, step = node.args
    role = build.role(x)
    if role.plain and dim == 0 and start == 0 and step == 1 and build.axis_of_size(shape_of(node)[0]) is Axis.TOKEN:
        rows = build.emit(aten.index.Tensor, build.new(x), [build.positions()])
        return rows, Role((Axis.TOKEN, *role.axes[1:]), lifted=True)
    if role.axes[dim] is not Axis.PLAIN or not isinstance(shape_of(node)[dim], int):
        build.refuse(node, f"takes a part of a {role.axes[dim].value} dimension, or one that depends on sizes")
    return build.emit(aten.slice.Tensor, build.new(x), dim + role.lifted, start, end, step), role


def cat(build: Rebuild, node: Node) -> Result:
    """Operands side by side along a plain dimension; all lifted, or none."""
    parts, dim = node.args
    roles = [build.role(part) for part in parts]
    if any(role != roles[0] for role in roles):
        build.refuse(node, "joins values whose dimensions stand for different things")
    if roles[0].axes[dim] is not Axis.PLAIN:
        build.refuse(node, f"joins along the {roles[0].axes[dim].value} dimension")
    return build.emit(aten.cat.default, list(build.new(parts)), dim + roles[0].lifted), roles[0]


def expand(build: Rebuild, node: Node) -> Result:
    """Dimensions that grow to the size of the batch or of the tokens become those axes."""
    x, sizes = node.args
    role, shape = build.role(x), shape_of(node)
    missing = len(shape) - len(role.axes)
    axes = [Axis.PLAIN] * missing + list(role.axes)
    new_sizes = list(build.new(sizes))
    for dim, size in enumerate(shape):
        grown = dim < missing or (shape_of(x)[dim - missing] == 1 and size != 1)
        if grown:
            axis = build.axis_of_size(size)
            if axis is None:
                build.refuse(node, f"dimension {dim} grows to {size}")
            axes[dim] = axis
    if not role.lifted:
        return build.emit(aten.expand.default, build.new(x), new_sizes), Role(tuple(axes))
    if Axis.BATCH in axes:
        lowered = lower(build, x, len(shape), axes.index(Axis.BATCH))
        return build.emit(aten.expand.default, lowered, new_sizes), Role(tuple(axes))
    if missing:
        build.refuse(node, "adds dimensions to a value of the position")
    return build.emit(aten.expand.default, build.new(x), [-1, *new_sizes]), Role(tuple(axes), lifted=True)


def creation(build: Rebuild, node: Node) -> Result:
    """A constant of any size."""
    axes = [build.axis_of_size(size) for size in shape_of(node)]
    if None in axes or not isinstance(node.args[1], (int, float)):
        build.refuse(node, "its size or value is computed from sizes")
    return build.copy(node), Role(tuple(axes))
