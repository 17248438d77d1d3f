"""Sizes that turn out to be 1 at run time only, through one compiled program."""

from __future__ import annotations

import pytest
import sympy
import torch
from lowered import Lowered

from anvil.graph.program import GraphProgram
from anvil.graph.symbolic import fake_mode, fake_tensor, symbolic_size


@pytest.fixture(scope="module")
def add():
    """x[A, B] + y[1, C] where B and C are equal, or one of them is 1. PyTorch's exporter would fix that choice."""
    mode = fake_mode()
    a, b, c = (symbolic_size(mode, name, hint=4) for name in "ABC")
    joint = sympy.Piecewise((c.node.expr, sympy.Eq(b.node.expr, 1)), (b.node.expr, True))
    shapes = {"x": (a, b), "y": (1, c), "sum": (a, mode.shape_env.create_symintnode(joint, hint=4))}
    graph = torch.fx.Graph()
    nodes = {name: graph.placeholder(name) for name in ("x", "y")}
    nodes["sum"] = graph.call_function(torch.ops.aten.add.Tensor, (nodes["x"], nodes["y"]))
    for name, node in nodes.items():
        node.meta["val"] = fake_tensor(mode, shapes[name], torch.float32)
    graph.output((nodes["sum"],))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return Lowered(GraphProgram("broadcast", module, ("x", "y"), {}, {}, {name: (0, None) for name in "ABC"}))


@pytest.mark.parametrize(
    "a, b, c", [(4, 4, 4), (4, 4, 1), (1, 4, 4), (4, 1, 4), (3, 33, 1), (3, 1, 33), (1, 1, 1), (2, 0, 1)]
)
def test_one_program_broadcasts_either_way(add, a, b, c):
    x = 10.0 * torch.arange(a)[:, None] + torch.arange(b)
    y = 100.0 * torch.arange(c)[None, :]
    assert add(x, y).equal(x + y)
    assert add(x, y, threads=2).equal(x + y)
