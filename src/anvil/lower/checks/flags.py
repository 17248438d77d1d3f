"""A check of values: a row that notes whether something holds for any element, read after the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from anvil.errors import InputError
from anvil.lower.generic.emission import emit_region
from anvil.lower.generic.groups import build_node, resolve_inside
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.values import Tensor
from anvil.lower.views import REMAPS
from anvil.runtime.plan import Buffer, Check, View

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

Flags = Callable[[Region, Operand], Value]


def emit_flag(low: Lowering, node: Node, source: Any, flags: Flags, message: str, error: type[InputError]) -> None:
    """The run ends with ``error`` if one of the ``flags`` (i1) of ``source``, a tensor or size of ``node``, is set."""
    region = Region()
    if isinstance(source, Node) and isinstance(source.meta["val"], torch.Tensor):
        operand = _rebuilt(low, region, node, source)
    else:
        operand = region.scalar(low.size(source), "i64")
    found = region.spread(flags(region, operand))
    walked = {loop for i in _read(region) for loop in region.loops(i)}
    if region.reduced or not set(region.loops(found.step)) <= walked:
        # A region folds one set of loops away, and a loop needs a tensor in memory that has its size.
        stored = low.allocate(node, found.shape, "i1", temp=True)
        emit_region(low, region, [found], [stored], node, "refused", None)
        region = Region()
        found = region.load(Tensor(stored, "i1"))
    total = region.reduce("any", [found], range(len(found.shape)))
    name = low.unique(f"{node.name}_refused")
    low.buffers[name] = Buffer(name, "output", "i1", ())
    emit_region(low, region, [total], [View(name, 0, (), ())], node, "any_refused", None)
    low.checks.append(Check(name, message, error))


def _read(region: Region) -> list[int]:
    return [position for position, step in enumerate(region.steps) if step.kind == "input"]


def _rebuilt(low: Lowering, region: Region, node: Node, source: Node) -> Operand:
    """``source`` as an operand of ``region``: from memory, or computed again where the kernel of ``node`` does so."""
    group = low.groups.get(node)
    members = group.nodes if group else []
    needed, stack = set[Node](), [source]
    while stack:
        used = stack.pop()
        if used in members and used not in low.results:
            needed.add(used)
            stack += used.all_input_nodes
        elif used.op == "call_function" and used.target in REMAPS:
            stack.append(used.args[0])  # type: ignore[arg-type]
    values: dict[Node, Value] = {}

    def operand(source: Node) -> Operand:
        inside = resolve_inside(low.graph, values, source)
        return low.tensor(source) if inside is None else inside

    for member in members:
        if member in needed:
            values[member] = build_node(low.graph, region, member, operand)
    return operand(source)
