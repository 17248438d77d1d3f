"""Tiny models of every architecture through the whole compiler: captured by export, and by ``torch.compile``."""

from __future__ import annotations

import pytest
import torch
from architectures import ARCHITECTURES
from tiny_models import (
    assert_same_function,
    one_thread,  # noqa: F401
)
from torch import nn

import anvil.frontend.dynamo as dynamo
from anvil.api import compile_program
from anvil.frontend.capture import capture
from anvil.frontend.dynamo.explain import explain
from anvil.frontend.stages import fuse

TARGET = "x86_64-avx2"
SIZES = [(2, 5), (3, 9), (1, 7)]  # batch and tokens; the first ones are captured
IN_DYNAMO = ("llama", "bert", "whisper")  # the others go the same way once their graph is recorded


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_exported_model_gives_the_eager_logits_at_any_size(name):
    architecture = ARCHITECTURES[name]
    model, options = architecture.model(), dict(architecture.options)
    dims = {0: "B"} if architecture.longest is None else {0: "B", 1: "S"}
    program = capture(
        model,
        (architecture.draw(*SIZES[0]),),
        (dims,),
        name,
        kwargs=options,
        select=lambda output: getattr(output, architecture.result),
        ranges={"S": (1, architecture.longest)},
    )
    run = compile_program(fuse(program), TARGET)
    for size in SIZES:
        x = architecture.draw(*size)
        with torch.no_grad():
            want = getattr(model(x, **options), architecture.result)
        got = run(x)
        assert_same_function(got[0] if isinstance(got, (list, tuple)) else got, want)


@pytest.mark.parametrize("name", IN_DYNAMO)
def test_torch_compile_gives_the_eager_logits_at_any_size(name):
    torch._dynamo.reset()
    architecture = ARCHITECTURES[name]
    model, options = architecture.model(), dict(architecture.options)
    fast = torch.compile(
        lambda x: getattr(model(x, **options), architecture.result), backend=dynamo.anvil, dynamic=True
    )
    with torch.no_grad():
        for size in SIZES[:2]:
            x = architecture.draw(*size)
            assert_same_function(fast(x), getattr(model(x, **options), architecture.result))


class Broken(nn.Module):
    """Three graphs: the middle one holds an op that anvil does not know."""

    def forward(self, x):
        y = torch.sin(x) * 2
        torch._dynamo.graph_break()
        y = torch.linalg.inv(y)
        torch._dynamo.graph_break()
        return y + 1


def test_explain_says_what_is_compiled_and_what_not_and_why():
    report = explain(Broken(), torch.randn(3, 3))
    assert [graph.compiled for graph in report.graphs] == [True, False, True]
    assert "linalg.inv" in report.graphs[1].reason
    assert len(report.breaks) == 2
    assert str(report).startswith("2 of 3 graphs compiled")
