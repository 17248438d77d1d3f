"""Where the repeated blocks of a model end in its graph: the values a per-layer comparison looks at."""

from __future__ import annotations

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


def _layer_of(node: Node) -> str:
    """Path of the outermost module-list element the node was called in, or empty."""
    if node.op != "call_function":
        return ""
    for path, _ in node.meta.get("nn_module_stack", {}).values():
        parts = path.removeprefix(_ROOT).removeprefix(".").split(".")
        for end, part in enumerate(parts):
            if part.isdigit():
                return ".".join(parts[: end + 1])
    return ""
