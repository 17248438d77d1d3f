"""Operations on single elements, reductions inside a token, products with weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role
from anvil.graph.rewrite import argument, same_size, shape_of

aten = torch.ops.aten


def lower(build: Rebuild, old: Node, rank: int, position: int) -> Node:
    """A lifted value with its batch put at dimension ``position`` of the ``rank`` dimensions it is broadcast to."""
    new, own = build.new(old), len(shape_of(old))
    missing = rank - own
    if position < missing:
        for _ in range(missing - position - 1):
            new = build.emit(aten.unsqueeze.default, new, 1)
        return new
    dim = position - missing
    if not same_size(shape_of(old)[dim], 1):
        build.refuse(old, f"dimension {dim} depends on the position where the batch is expected")
    new = build.emit(aten.squeeze.dims, new, [1 + dim])
    if dim == 0:
        return new
    return build.emit(aten.permute.default, new, [*range(1, dim + 1), 0, *range(dim + 1, own)])


def pad_lifted(build: Rebuild, old: Node, rank: int) -> Node:
    """A lifted value with dimensions of size 1 after its batch, so that it aligns with ``rank`` dimensions."""
    new = build.new(old)
    for _ in range(rank - len(shape_of(old))):
        new = build.emit(aten.unsqueeze.default, new, 1)
    return new


def is_tensor(item: object) -> bool:
    return isinstance(item, Node) and isinstance(item.meta.get("val"), torch.Tensor)


def join_axes(build: Rebuild, node: Node, operands: list[tuple[tuple[Any, ...], tuple[Axis, ...]]]) -> list[Axis]:
    """The axes of a broadcast of operands, each given by its shape and its axes."""
    rank = max((len(shape) for shape, _ in operands), default=0)
    joined: list[Axis] = []
    for dim in range(-rank, 0):
        found = {axes[dim] for shape, axes in operands if len(shape) >= -dim and not same_size(shape[dim], 1)}
        if len(found) > 1:
            names = " and ".join(sorted(axis.value for axis in found))
            build.refuse(node, f"a dimension is {names} at once")
        joined.append(found.pop() if found else Axis.PLAIN)
    return joined


def refuse_meetings(build: Rebuild, node: Node, axes: list[Axis]) -> None:
    """Two dimensions for tokens hold pairs of tokens."""
    for axis in (Axis.BATCH, Axis.TOKEN, Axis.BOTH):
        if axes.count(axis) > 1:
            build.refuse(node, f"two dimensions are {axis.value}: tokens meet other tokens outside causal attention")


def refuse_token_counts(build: Rebuild, node: Node) -> None:
    """The number of tokens as a value (not as a size) is another one in the incremental program."""
    for item in node.all_input_nodes:
        value = item.meta.get("val")
        if isinstance(value, torch.SymInt) and build.depends_on_tokens(value):
            build.refuse(node, f"computes with {item.name}, which depends on the number of tokens")


def pointwise(build: Rebuild, node: Node) -> tuple[Node, Role]:
    """Element by element, operands broadcast: any axis may be anything, as long as all operands agree."""
    refuse_token_counts(build, node)
    operands = [item for item in node.all_input_nodes if is_tensor(item)]
    rank = len(shape_of(node))
    axes = join_axes(build, node, [(shape_of(item), build.role(item).axes) for item in operands])
    refuse_meetings(build, node, axes)
    lifted = [operand for operand in operands if build.role(operand).lifted]
    position = axes.index(Axis.BATCH) if Axis.BATCH in axes else None
    if lifted and Axis.BOTH in axes:
        build.refuse(node, "a value of the position meets batch and tokens flattened into one dimension")
    aligned = {
        operand: pad_lifted(build, operand, rank) if position is None else lower(build, operand, rank, position)
        for operand in lifted
    }

    def replace(item: Any) -> Any:
        return aligned[item] if item in aligned else build.new(item)

    args = torch.fx.node.map_aggregate(node.args, lambda item: replace(item) if isinstance(item, Node) else item)
    kwargs = torch.fx.node.map_aggregate(node.kwargs, lambda item: replace(item) if isinstance(item, Node) else item)
    return build.emit(node.target, *args, **kwargs), Role(tuple(axes), bool(lifted) and position is None)


def within_token(build: Rebuild, node: Node) -> tuple[Node, Role]:
    """Reductions and normalisations over plain dimensions of the first operand."""
    refuse_token_counts(build, node)
    x = node.args[0]
    role = build.role(x)
    if any(not build.role(item).plain for item in node.all_input_nodes if item is not x):
        build.refuse(node, "an operand other than the first depends on tokens")
    dims = _dims(node, len(role.axes))
    if any(role.axes[dim] is not Axis.PLAIN for dim in dims):
        build.refuse(node, f"reduces over dimensions {dims}, one of which is {_labels(role, dims)}")
    if len(shape_of(node)) == len(role.axes):
        axes = list(role.axes)
    else:
        axes = [axis for dim, axis in enumerate(role.axes) if dim not in dims]
    return _with_shifted_dims(build, node, role, dims), role.with_axes(axes)


def _labels(role: Role, dims: list[int]) -> str:
    return ", ".join(role.axes[dim].value for dim in dims if role.axes[dim] is not Axis.PLAIN)


def _dims(node: Node, rank: int) -> list[int]:
    names = [parameter.name for parameter in node.target._schema.arguments]
    if "dim" not in names:  # normalisations over trailing dimensions
        count = len(argument(node, "normalized_shape")) if "normalized_shape" in names else 1
        return list(range(rank - count, rank))
    dims = argument(node, "dim")
    if dims is None or dims == []:
        return list(range(rank))
    return [dim % rank for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]


def _with_shifted_dims(build: Rebuild, node: Node, role: Role, dims: list[int]) -> Node:
    if not role.lifted or not any(parameter.name == "dim" for parameter in node.target._schema.arguments):
        return build.copy(node)
    given = argument(node, "dim")
    if given is None or given == []:
        build.refuse(node, "reduces everything to one value")
    shifted = [dim + 1 for dim in dims] if isinstance(given, (list, tuple)) else dims[0] + 1
    return build.emit(node.target, build.new(node.args[0]), shifted, *build.new(node.args[2:]), **node.kwargs)


def linear(build: Rebuild, node: Node) -> tuple[Node, Role]:
    x, *weights = node.args
    role = build.role(x)
    if any(not build.role(weight).plain for weight in weights):
        build.refuse(node, "the weight depends on tokens")
    if role.axes[-1] is not Axis.PLAIN:
        build.refuse(node, f"the summed dimension is {role.axes[-1].value}")
    return build.copy(node), role


def matmul(build: Rebuild, node: Node) -> tuple[Node, Role]:
    """Products of matrices whose summed dimension is plain."""
    roles = [build.role(item) for item in node.args]
    if min(len(role.axes) for role in roles) < 2:
        build.refuse(node, "has a vector operand")
    inner = (roles[0].axes[-1], roles[1].axes[-2])
    if any(axis is not Axis.PLAIN for axis in inner):
        build.refuse(node, "sums over tokens or batch rows")
    if any(role.lifted for role in roles):
        other = roles[1] if roles[0].lifted else roles[0]
        if not (other.plain and len(roles[0].axes) == len(roles[1].axes)):
            build.refuse(node, "multiplies a value of the position with one of the tokens")
    outer = [(shape_of(item)[:-2], role.axes[:-2]) for item, role in zip(node.args, roles, strict=True)]
    axes = [*join_axes(build, node, outer), roles[0].axes[-2], roles[1].axes[-1]]
    refuse_meetings(build, node, axes)
    return build.copy(node), Role(tuple(axes), any(role.lifted for role in roles))
