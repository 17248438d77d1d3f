"""``as_strided``: a window on the memory of a tensor, as PyTorch lays it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from anvil.graph.describe import describe_node
from anvil.graph.rewrite import argument
from anvil.lower.generic.emission import emit_copy
from anvil.lower.sizes import product, same, simplify
from anvil.lower.values import Tensor
from anvil.lower.views import REMAPS, WINDOWS
from anvil.runtime.plan import Requirement, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten


def _as_strided(low: Lowering, node: Node) -> View:
    """The elements at ``storage_offset`` + index · stride, counted in the memory that the source is a view of; without
    a storage offset, from where the source begins."""
    source = node.args[0]
    sizes, strides = (tuple(low.size(item) for item in argument(node, name)) for name in ("size", "stride"))
    start = argument(node, "storage_offset")
    start = source.meta["val"].storage_offset() if start is None else start  # type: ignore[union-attr]
    memory = _memory(low, source)  # type: ignore[arg-type]
    window = View(memory.buffer, simplify(memory.offset + low.size(start)), sizes, strides)
    _require_inside(low, node, window)
    return low.stored(node, Tensor(window, low.dtype(node)))


def _require_inside(low: Lowering, node: Node, window: View) -> None:
    """The last element of ``window`` must lie in its buffer; what a size of 0 asks for is no more than that."""
    last = sum(((n - 1) * stride for n, stride in zip(window.sizes, window.strides, strict=True)), window.offset)
    left = simplify(product(low.buffers[window.buffer].shape) - 1 - last)
    if 0 not in window.sizes and not (isinstance(left, int) and left >= 0):
        what = f"reaches beyond the memory of {node.args[0]}, expected a window inside"
        low.requirements.append(Requirement(left, 0, f"{describe_node(node)}: {what}"))


def _memory(low: Lowering, node: Node) -> View:
    """What ``node`` is a view of, laid out as in PyTorch; copied if it lies in another way."""
    while node.op == "call_function" and (node.target in REMAPS or node.target in WINDOWS):
        node = node.args[0]  # type: ignore[assignment]
    view, fake = low.view(node), node.meta["val"]
    wanted = [low.size(stride) for stride in fake.stride()]
    if all(same(n, 1) or same(a, b) for n, a, b in zip(view.sizes, view.strides, wanted, strict=True)):
        return view
    copied = low.allocate(node, view.sizes, low.dtype(node), order=low.order(node), temp=True)
    emit_copy(low, node, Tensor(view, low.dtype(node)), copied)
    return copied


LOWERINGS: dict[Any, Any] = {aten.as_strided.default: _as_strided}
