"""A call replaced by what a PyTorch function does, traced into the same graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import INHERITED_META, mode_of


def inline(program: GraphProgram, node: Node, function: Callable[..., Any]) -> list[Node] | None:
    """Replace ``node`` by the calls that ``function`` makes when it is given the same arguments.

    Composite operations in ``function`` are traced as what they consist of. Gives the new calls; None, and nothing
    changed, if it returns NotImplemented or works in place. The function may not branch on symbolic sizes.
    """
    sources = node.all_input_nodes
    accepted = True

    def call(*values: Any) -> Any:
        nonlocal accepted
        known = dict(zip(sources, values, strict=True))
        args, kwargs = (map_aggregate(part, lambda a: known.get(a, a)) for part in (node.args, node.kwargs))
        result = function(*args, **kwargs)
        accepted = result is not NotImplemented
        if not accepted:
            return ()
        if not isinstance(result, (tuple, list)):
            return _typed(result, node.meta["val"])
        return tuple(_typed(item, said) for item, said in zip(result, node.meta["val"], strict=True))

    with torch.no_grad(), enable_python_dispatcher(), mode_of(program):
        fakes = [_own(source.meta["val"]) for source in sources]
        traced = make_fx(call, tracing_mode="real")(*fakes)
    if not accepted or any(_mutates(inner) for inner in traced.graph.nodes):
        return None
    return _splice(program, node, traced, dict(zip(traced.graph.find_nodes(op="placeholder"), sources, strict=True)))


def _own(value: Any) -> Any:
    """``value`` as an object of its own: the tracer tells tensors apart by identity, and equal calls share what was
    inferred of their results."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _typed(result: Any, said: Any) -> Any:
    """``result`` in the type the call is known to have: some definitions of PyTorch leave that to the caller."""
    if isinstance(result, torch.Tensor) and result.dtype != said.dtype:
        return result.to(said.dtype)
    return result


def _mutates(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _splice(program: GraphProgram, node: Node, traced: torch.fx.GraphModule, copies: dict[Node, Node]) -> list[Node]:
    graph, new = program.module.graph, list[Node]()
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op in ("placeholder", "output"):
                continue
            assert inner.op == "call_function", f"writing out {node}: {inner.op} {inner.target}"
            copies[inner] = graph.node_copy(inner, copies.__getitem__)
            copies[inner].meta = {"val": inner.meta.get("val")}
            copies[inner].meta |= {key: node.meta[key] for key in INHERITED_META if key in node.meta}
            new.append(copies[inner])
    result = map_aggregate(traced.graph.output_node().args[0], lambda a: copies.get(a, a))
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
    return new
