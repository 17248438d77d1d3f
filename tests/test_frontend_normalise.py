"""Normalisation: every spelling becomes the one spelling, and no value changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    one_thread,  # noqa: F401
    run,
)

from anvil.frontend.capture import capture
from anvil.frontend.stages import NORMALISE, each_stage, fuse
from anvil.graph.describe import op_name

X = torch.tensor([[-0.0, 1.5, -2.25], [torch.inf, 3.0, 0.5]])
SHAPE = {0: "N"}


def ops_of(program):
    return [op_name(node) for node in program.module.graph.nodes if node.op == "call_function"]


def normalised_ops(function, *examples):
    return ops_of(fuse(capture(function, examples, (SHAPE,) * len(examples))))


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x: x.to(torch.float32).contiguous().clone().detach(), []),
        (lambda x: x * 1.0 / 1, []),
        (lambda x: x[:, :][0:], []),
        (lambda x: x.view(-1, 3).t().t(), []),
        (lambda x: torch.dropout(x, 0.3, False), []),
        (lambda x: x.pow(2), ["aten.mul.Tensor"]),
        (lambda x: x**0.5, ["aten.sqrt"]),
        (lambda x: x**-0.5, ["aten.rsqrt"]),
        (lambda x: x.square(), ["aten.mul.Tensor"]),
        (lambda x: torch.sigmoid(x) * x, ["aten.silu"]),
        (lambda x: x.permute(1, 0), ["aten.transpose.int"]),
        (lambda x: x.T, ["aten.transpose.int"]),
        (lambda x: x.chunk(3, dim=-1)[1], ["aten.slice.Tensor"]),
        (lambda x: x.split([1, 2], dim=1)[0], ["aten.slice.Tensor"]),
        (lambda x: x.unbind(1)[2], ["aten.select.int"]),
        (lambda x: x + torch.full((), 2.0), ["aten.add.Tensor"]),
        (lambda x: x * torch.ones(3), []),
        (lambda x: x * torch.ones((), dtype=torch.float64), []),  # a scalar does not promote
        (lambda x: (x > 0).logical_and(x < 1), ["aten.gt.Scalar", "aten.lt.Scalar", "aten.bitwise_and.Tensor"]),
        (lambda x: (x > 0) & torch.ones((), dtype=torch.bool), ["aten.gt.Scalar"]),
        (lambda x: x.double() + x.type(torch.float64), ["aten._to_copy", "aten.add.Tensor"]),
        (lambda x: x.exp() + x.exp(), ["aten.exp", "aten.add.Tensor"]),
    ],
)
def test_spellings_become_one(function, want):
    assert normalised_ops(function, X) == want


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x + 0.0, "aten.add.Tensor"),  # -0.0 + 0.0 is +0.0
        (lambda x: x * torch.ones(3, dtype=torch.float64), "aten.mul.Tensor"),
        (lambda x: x[1:], "aten.slice.Tensor"),
        (lambda x: x.to(torch.float64), "aten._to_copy"),
        (lambda x: x.expand(2, 2, 3), "aten.expand"),
        (lambda x: x**3, "aten.pow.Tensor_Scalar"),
        (lambda x: torch.sigmoid(x) * (x + 1), "aten.sigmoid"),
    ],
)
def test_what_changes_a_value_or_shape_stays(function, op):
    program = fuse(capture(function, (X,)))
    assert op in ops_of(program)
    got, want = run(program, X), function(X)
    assert got.dtype == want.dtype
    assert torch.equal(got, want) or torch.equal(torch.nan_to_num(got), torch.nan_to_num(want))
    assert torch.equal(got.signbit(), want.signbit())


def test_one_and_true_are_different_arguments():
    program = fuse(capture(lambda x: (x + 1, x + 1.0, x * 2), (torch.arange(3),)))
    one, one_float, _ = run(program, torch.arange(3))
    assert (one.dtype, one_float.dtype) == (torch.int64, torch.float32)


def test_random_numbers_are_not_shared():
    program = fuse(capture(lambda x: (torch.rand_like(x), torch.rand_like(x)), (X,)))
    first, second = run(program, X)
    assert not torch.equal(first, second)


def write_columns(x):
    y = x * 2
    y[:, 1:] = 5.0
    y[0] = y[1] - 1
    y[:, -1] += 1
    y[...] = y * 3
    return y


def test_writes_into_parts_become_parts_side_by_side():
    program = fuse(capture(write_columns, (X.clone(),)))
    assert not {"aten.slice_scatter", "aten.select_scatter", "aten.fill.Tensor", "aten.copy"} & set(ops_of(program))
    assert torch.equal(run(program, X), write_columns(X))


def test_a_write_with_a_step_stays():
    def write(x):
        y = x * 2
        y[:, ::2] = 5.0
        return y

    program = fuse(capture(write, (X.clone(),)))
    assert "aten.slice_scatter" in ops_of(program)
    assert torch.equal(run(program, X), write(X))


STEPS = {
    "transpose": lambda x: x.transpose(0, 1),
    "double transpose": lambda x: x.transpose(0, 1).transpose(-1, -2),
    "flatten": lambda x: x.reshape(-1),
    "fold": lambda x: x.reshape(-1, x.shape[-1]),
    "narrow": lambda x: x[..., : max(1, x.shape[-1] // 2)],
    "reverse half": lambda x: x[..., x.shape[-1] // 2 :],
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.squeeze(),
    "repeat": lambda x: x.unsqueeze(0).expand(2, *x.shape).clone().reshape(-1, *x.shape[1:]),
    "add": lambda x: x + x,
    "rsub": lambda x: 1 - x,
    "mean": lambda x: x.mean(-1, keepdim=True) + x,
    "softmax": lambda x: torch.softmax(x, -1),
    "power": lambda x: x**2,
    "constant": lambda x: x * torch.full_like(x, 0.5) + torch.zeros_like(x),
    "cat": lambda x: torch.cat((x, -x), -1),
    "last": lambda x: x.select(-1, -1).unsqueeze(-1),
}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), rows=st.integers(2, 4))
def test_any_chain_of_operations_keeps_its_values_at_every_stage(names, rows):
    def chain(x):
        for name in names:
            x = STEPS[name](x) if x.ndim > 1 else STEPS[name](x.unsqueeze(0))
        return x

    x = torch.linspace(-1.7, 2.3, rows * 6).reshape(rows, 6)
    want = chain(x)
    for program in each_stage(capture(chain, (x,))):
        got = run(program, x)
        if program.stage == "capture" or program.stage in {stage.name for stage in NORMALISE}:
            assert torch.equal(got, want), program.stage
        torch.testing.assert_close(got, want, rtol=2**-22, atol=2**-22)  # fused ops: a few roundings of values near 1
