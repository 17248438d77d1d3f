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

from anvil.errors import IndexRangeError
from anvil.graph import data_ops as _ops  # noqa: F401 (registers anvil::scatter)
from anvil.graph.describe import describe_node
from anvil.graph.rewrite import argument
from anvil.lower.checks.flags import emit_flag
from anvil.lower.generic.num import Num
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.sizes import product
from anvil.runtime.plan import Size

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
    """A row and a check for every index tensor of ``node``. Those that the caller checks, and tensors and ranges
    checked already, need none."""
    for indices in INDICES.get(node.target, lambda _: iter(()))(node):
        shape = low.shape(indices.source)
        size = product(shape) if indices.dim is None else shape[indices.dim % len(shape)] if shape else 1
        key = ("index", indices.index, size, indices.wrap)
        if indices.index.name not in low.trusted and key not in low.checked:
            low.checked.add(key)
            _emit(low, node, indices, size)


def _emit(low: Lowering, node: Node, indices: Indices, size: Size) -> None:
    lowest = "-size" if indices.wrap else "0"
    least = -1 if indices.skip else 0

    def outside(i: Num, count: Num) -> Num:
        wide = i.to("i64")
        return (wide >= count) | (wide < (-count if indices.wrap else least))

    def flags(region: Region, operand: Operand) -> Value:
        return region.map(outside, [operand, region.scalar(size, "i64")], operand.shape, "i1")

    what = f"an index into {indices.where} is out of range, expected {lowest} <= index < size={size}"
    what = f"{describe_node(node)}: {what}"
    emit_flag(low, node, indices.index, flags, what, IndexRangeError)
