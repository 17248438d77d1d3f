"""What ``torch.compile(model, backend="anvil")`` makes of a model: what is compiled, what is not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from anvil.errors import UnsupportedError
from anvil.frontend.dynamo.backend import anvil


@dataclass(frozen=True)
class ExplainedGraph:
    """One graph that Dynamo recorded: its number of calls, and why it runs in eager PyTorch (empty: it is compiled)."""

    calls: int
    reason: str = ""

    @property
    def compiled(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Explanation:
    """The graphs in the order they ran first, and what Dynamo says of the places where one ends and Python goes on."""

    graphs: tuple[ExplainedGraph, ...]
    breaks: tuple[str, ...]

    def __str__(self) -> str:
        compiled = sum(graph.compiled for graph in self.graphs)
        lines = [f"{compiled} of {len(self.graphs)} graphs compiled, {len(self.breaks)} graph breaks"]
        for number, graph in enumerate(self.graphs):
            lines.append(f"graph {number}: {graph.calls} calls, {graph.reason or 'compiled'}")
        return "\n".join([*lines, *(f"break: {reason}" for reason in self.breaks)])


def explain(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Explanation:
    """Run ``model(*inputs, **kwargs)`` once through ``torch.compile`` and report on every graph.

    Graphs that anvil refuses run in eager PyTorch here, so that the rest of the model is reported on too. Forgets
    what Dynamo has compiled before. Errors other than a refusal are raised as they are.
    """
    graphs: list[ExplainedGraph] = []

    def backend(module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        compiled = anvil(module, examples, options={"fallback": False})
        calls = sum(node.op.startswith("call_") for node in module.graph.nodes)
        number = len(graphs)
        graphs.append(ExplainedGraph(calls, "not run"))

        def run(*arguments: Any) -> Any:
            try:
                result = compiled(*arguments)
                graphs[number] = ExplainedGraph(calls)
            except UnsupportedError as error:
                graphs[number] = ExplainedGraph(calls, str(error))
                result = module(*arguments)
            return result

        return run

    torch._dynamo.reset()
    before = Counter(counters["graph_break"])
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend)(*inputs, **kwargs)
    finally:
        torch._dynamo.reset()
    breaks = Counter(counters["graph_break"]) - before
    return Explanation(tuple(graphs), tuple(reason.strip().splitlines()[0] for reason in breaks.elements()))
