"""Whether computed indices exist: kernels move an index that does not to the nearest element, so that memory outside is
never read or written; a check row per index tensor notes it, and the run ends with the error PyTorch raises.

``INDICES`` says, per overload, which arguments are indices, into which dimension of what, and whether negative ones
count from the end. An op that takes indices gets its checks by one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from anvil.graph import data_ops as _ops  # noqa: F401 (registers anvil::scatter)
from anvil.graph.describe import describe_node
from anvil.graph.rewrite import argument
from anvil.lower.generic.emission import emit_region
from anvil.lower.generic.groups import build_node, resolve_inside
from anvil.lower.generic.num import Num
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.sizes import product
from anvil.lower.values import Tensor
from anvil.lower.views import REMAPS
from anvil.runtime.plan import Buffer, Check, Size, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten


@dataclass(frozen=True)
class Indices:
    """Tensor ``index`` picks from dimension ``dim`` of ``source``, or from all of it. With ``wrap`` -1 is the last
    one, with ``skip`` it is none on purpose."""

    index: Node
    source: Node
    dim: int | None
    wrap: bool = False
    skip: bool = False

    @property
    def where(self) -> str:
        return self.source.name if self.dim is None else f"dimension {self.dim} of {self.source.name}"


def _along(source: str, index: str) -> Callable[[Node], Iterator[Indices]]:
    def found(node: Node) -> Iterator[Indices]:
        yield Indices(argument(node, index), argument(node, source), argument(node, "dim"))

    return found


def _rows(node: Node) -> Iterator[Indices]:
    yield Indices(argument(node, "indices"), argument(node, "weight"), 0)


def _each(node: Node) -> Iterator[Indices]:
    source = argument(node, "self")
    for dim, index in enumerate(argument(node, "indices")):
        if isinstance(index, Node) and index.meta["val"].dtype not in (torch.bool, torch.uint8):
            yield Indices(index, source, dim, wrap=True)


def _places(node: Node) -> Iterator[Indices]:
    x, place, *_ = node.args
    yield Indices(place, x, None, skip=True)  # type: ignore[arg-type]


INDICES: dict[Any, Callable[[Node], Iterator[Indices]]] = {
    aten.embedding.default: _rows,
    aten.gather.default: _along("self", "index"),
    aten.index_select.default: _along("self", "index"),
    aten.index.Tensor: _each,
    torch.ops.anvil.scatter.default: _places,  # what every scatter and every write through indices becomes
}


def emit_index_checks(low: Lowering, node: Node) -> None:
    """A row and a :class:`Check` for every index tensor of ``node``. Those that the caller checks, and tensors and
    ranges checked already, need none."""
    if node.op != "call_function" or node.target not in INDICES:
        return
    for indices in INDICES[node.target](node):
        shape = low.shape(indices.source)
        size = product(shape) if indices.dim is None else shape[indices.dim % len(shape)] if shape else 1
        if indices.index.name not in low.trusted and (indices.index, size, indices.wrap) not in low.checked:
            low.checked.add((indices.index, size, indices.wrap))
            _emit(low, node, indices, size)


def _emit(low: Lowering, node: Node, indices: Indices, size: Size) -> None:
    lowest = "-size" if indices.wrap else "0"
    least = -1 if indices.skip else 0

    def outside(i: Num, count: Num) -> Num:
        wide = i.to("i64")
        return (wide >= count) | (wide < (-count if indices.wrap else least))

    region = Region()
    operand = _rebuilt(low, region, node, indices.index)
    flags = region.spread(region.map(outside, [operand, region.scalar(size, "i64")], operand.shape, "i1"))
    walked = {loop for i in _read(region) for loop in region.loops(i)}
    if region.reduced or not set(region.loops(flags.step)) <= walked:
        # A region folds one set of loops away, and a loop needs a tensor in memory that has its size.
        stored = low.allocate(node, flags.shape, "i1", temp=True)
        emit_region(low, region, [flags], [stored], node, "outside", None)
        region = Region()
        flags = region.load(Tensor(stored, "i1"))
    found = region.reduce("any", [flags], range(len(flags.shape)))
    name = low.unique(f"{node.name}_outside")
    low.buffers[name] = Buffer(name, "output", "i1", ())
    emit_region(low, region, [found], [View(name, 0, (), ())], node, "any_outside", None)
    what = f"an index into {indices.where} is out of range"
    low.checks.append(Check(name, f"{describe_node(node)}: {what}, expected {lowest} <= index < size={size}"))


def _read(region: Region) -> list[int]:
    return [position for position, step in enumerate(region.steps) if step.kind == "input"]


def _rebuilt(low: Lowering, region: Region, node: Node, index: Node) -> Operand:
    """``index`` as an operand of ``region``: from memory, or computed again where ``node``'s own kernel computes it."""
    group = low.groups.get(node)
    members = group.nodes if group else []
    needed, stack = set[Node](), [index]
    while stack:
        source = stack.pop()
        if source in members and source not in low.results:
            needed.add(source)
            stack += source.all_input_nodes
        elif source.op == "call_function" and source.target in REMAPS:
            stack.append(source.args[0])  # type: ignore[arg-type]
    values: dict[Node, Value] = {}

    def operand(source: Node) -> Operand:
        inside = resolve_inside(low.graph, values, source)
        return low.tensor(source) if inside is None else inside

    for member in members:
        if member in needed:
            values[member] = build_node(low.graph, region, member, operand)
    return operand(index)
