"""Where the modules of a model begin and end in its graph: the values that a comparison with PyTorch looks at."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram

_ROOT = "captured"  # the module that capture wraps around the model


def layer_outputs(program: GraphProgram) -> dict[str, str]:
    """For each element of a module list (``model.layers.0``, ...) the graph node whose value leaves it last.

    A list inside another list counts as part of the outer element. Empty for a model without module lists.
    """
    found: dict[str, str] = {}
    for node in program.module.graph.nodes:
        layer = _layer_of(node)
        if layer and isinstance(node.meta.get("val"), torch.Tensor) and any(_layer_of(u) != layer for u in node.users):
            found[layer] = node.name
    return found


@dataclass(frozen=True)
class GraphPoint:
    """A value of the graph that PyTorch has too: what leaves a module, or with ``:in`` behind its path what enters it.

    ``ops`` are the operations that made it out of the points before it, first to last, views left out.
    """

    name: str
    node: str
    ops: tuple[str, ...]
    source: str = ""


def module_points(program: GraphProgram) -> list[GraphPoint]:
    """Where the graph enters and leaves the modules inside its layers, in the order of computation.

    Modules that were fused away have none; of names for one value the first is kept, an output before an input.
    """
    nodes = list(program.module.graph.nodes)
    names: dict[Node, str] = {}
    for node in nodes:
        for path in _inside(node):
            if any(path not in _inside(user) for user in node.users) and _is_value(node):
                names.setdefault(node, path)
    entered: set[str] = set()
    for node in nodes:
        for path in reversed(_inside(node)):
            first = next((arg for arg in node.all_input_nodes if _is_value(arg) and path not in _inside(arg)), None)
            if first is not None and path not in entered:
                entered.add(path)
                names.setdefault(first, f"{path}:in")
    last: dict[str, Node] = {}
    for node, name in names.items():
        last[name] = node
    return [
        GraphPoint(name, node.name, _ops_since(node, names), _line(node))
        for node, name in sorted(names.items(), key=lambda pair: nodes.index(pair[0]))
        if last[name] is node
    ]


def op_of(node: str) -> str:
    """``attention_cached`` of a node called ``attention_cached_default_3``: the operator without its overload."""
    return re.sub(r"(_(default|tensor|scalar))?(_\d+)?$", "", node.lower())


_VIEWS = ("reshape", "view", "transpose", "permute", "unsqueeze", "squeeze", "expand", "select", "slice", "sym_size")


def _ops_since(node: Node, points: dict[Node, str]) -> tuple[str, ...]:
    """Operations between the points before ``node`` and it; what changes a cache counts for those that read it."""
    graph_order = {each: index for index, each in enumerate(node.graph.nodes)}
    found, waiting = set(), [node]
    while waiting:
        current = waiting.pop()
        if current.op == "placeholder":
            writers = [u for u in current.users if "append" in u.name and graph_order[u] < graph_order[node]]
            waiting += [writer for writer in writers if writer not in found]
        elif current.op == "call_function" and current not in found and (current is node or current not in points):
            found.add(current)
            waiting += current.all_input_nodes
    inside = _layer_of(node)
    ops = [op_of(each.name) for each in sorted(found, key=lambda each: graph_order[each]) if _layer_of(each) == inside]
    return tuple(dict.fromkeys(op for op in ops if not op.startswith(_VIEWS)))


def _line(node: Node) -> str:
    """The Python line that called the operation, from the trace kept by capture."""
    lines = [line.strip() for line in node.meta.get("stack_trace", "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _is_value(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point()


def _inside(node: Node) -> list[str]:
    """Paths of the modules inside a layer that the node was called in, the layer first."""
    layer = _layer_of(node)
    paths = [_relative(path) for path, _ in node.meta.get("nn_module_stack", {}).values()] if layer else []
    return [path for path in paths if path == layer or path.startswith(f"{layer}.")]


def _relative(path: str) -> str:
    return path.removeprefix(_ROOT).removeprefix(".")


def _layer_of(node: Node) -> str:
    """Path of the outermost module-list element the node was called in, or empty.

    The choice of one row, which a decoder adds, stands under the name of what it chooses from and belongs to none.
    """
    if node.op != "call_function" or node.target is torch.ops.anvil.take_row.default:
        return ""
    for path, _ in node.meta.get("nn_module_stack", {}).values():
        parts = _relative(path).split(".")
        for end, part in enumerate(parts):
            if part.isdigit():
                return ".".join(parts[: end + 1])
    return ""
