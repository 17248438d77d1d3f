"""Layer boundaries are found in the graph, whatever the modules are called."""

import torch

from anvil.frontend.capture import capture
from anvil.graph.layers import layer_outputs


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])

    def forward(self, x):
        for part in self.parts:
            x = x + part(x)
        return x


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sigmoid()


def test_each_block_ends_in_the_value_that_leaves_it():
    module = Stack()
    program = capture(module, (torch.ones(2, 4),), ({0: "M"},))
    found = layer_outputs(program)
    assert list(found) == ["blocks.0", "blocks.1", "blocks.2"]
    values = {}

    class Keep(torch.fx.Interpreter):
        def run_node(self, node):
            values[node.name] = super().run_node(node)
            return values[node.name]

    x = torch.randn(3, 4)
    Keep(program.module).run(x, *program.params.values())
    for index, name in enumerate(found.values()):
        want = x
        for block in module.blocks[: index + 1]:
            want = block(want)
        assert torch.equal(values[name], want)


def test_a_model_without_blocks_has_no_layers():
    assert layer_outputs(capture(torch.nn.Linear(4, 4), (torch.ones(2, 4),))) == {}
