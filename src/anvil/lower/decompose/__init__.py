"""Ops written out in others, one file per family. Each file's ``DECOMPOSITIONS`` maps overloads to PyTorch functions
of the same signature that say what the op does in ops that have a lowering; NotImplemented leaves the call alone.

Without an entry, what has no lowering as a whole is replaced by what PyTorch says it consists of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.fx import Node

from anvil.discovery import offered
from anvil.errors import UnsupportedError
from anvil.graph.describe import describe_node
from anvil.graph.inline import inline
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass
from anvil.lower import named
from anvil.lower.generic import ops
from anvil.lower.views import REMAPS, WINDOWS
from anvil.lower.virtual import VIRTUAL


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """Every op that is written out."""
    return {op: function for table in offered(__name__, __path__, "DECOMPOSITIONS") for op, function in table.items()}


def _write_out(program: GraphProgram) -> None:
    """Again and again: what was written out may hold more to write out. An op within its own definition stays."""
    queue = list(program.module.graph.nodes)
    within: dict[Node, frozenset[Any]] = dict.fromkeys(queue, frozenset())
    while queue:
        node = queue.pop()
        function = None if node.target in within[node] else _meaning(node)
        if function is None:
            continue
        try:
            written = inline(program, node, function)
        except RuntimeError as error:  # PyTorch refuses what the op consists of, where its shape function let it pass
            raise UnsupportedError(f"lowering program {program.name!r}: {describe_node(node)}: {error}") from error
        for inner in written or ():
            within[inner] = within[node] | {node.target}
            queue.append(inner)


def _meaning(node: Node) -> Callable[..., Any] | None:
    """The function to write ``node`` out with; None if it stays."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if isinstance(node.meta["val"], (int, torch.SymInt)):
        return None  # sizes are known as they are
    if node.target in table():
        return table()[node.target]
    lowered = (ops.table(), named.table(), REMAPS, WINDOWS, VIRTUAL)
    return None if any(node.target in known for known in lowered) else definition(node.target)


def definition(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """What PyTorch says an op consists of: a composite op itself, the ATen form of a primitive, or an entry in a table
    of PyTorch."""
    if op.namespace == "prims":
        return op.impl_aten  # type: ignore[attr-defined]
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return op
    return decomposition_table.get(op)


WRITE_OUT = GraphPass("write_out", _write_out)
