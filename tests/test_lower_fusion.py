"""Which ops share a kernel: as many as fit one loop nest, never across something that must run in between."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import compiled

BSD = {0: "B", 1: "S", 2: "D"}
D = {0: "D"}


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def layer_norm(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * w + b


ONE_KERNEL = {
    "chain": (lambda x: torch.sigmoid(torch.exp(x) * 2 - 1) + x, [BSD]),
    "diamond": (lambda x: torch.relu(x + 1) * torch.tanh(x + 1), [BSD]),
    "two inputs meet": (lambda x, y: (x < 1) & (y > 0), [BSD, BSD]),
    "rms_norm": (rms_norm, [BSD, D]),
    "layer_norm": (layer_norm, [BSD, D, D]),
    "softmax after scale and bias": (lambda x, b: torch.softmax(x * 0.3 + b, -1), [BSD, D]),
    "two results": (lambda x, y: (h := x + y, torch.relu(h)), [BSD, BSD]),
    "small bias": (lambda x, b: x + (b * 2 + 1), [BSD, D]),
    "through a transpose": (lambda x: torch.exp(x + 1).transpose(1, 2) * 2, [BSD]),
    "through new dimensions": (lambda x, b: (x + 1)[:, None].expand(-1, 2, -1, -1) * b, [BSD, D]),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_these_become_one_kernel(name):
    function, dynamic = ONE_KERNEL[name]
    sizes = {"B": 2, "S": 3, "D": 5}

    def inputs():
        return [torch.randn([sizes[size] for size in dims.values()]) for dims in dynamic]

    lowered = compiled(function, *inputs(), dynamic=tuple(dynamic))
    assert len(lowered.kernels) == 1
    for sizes in ({"B": 1, "S": 1, "D": 1}, {"B": 2, "S": 5, "D": 33}, {"B": 3, "S": 1, "D": 16}):
        given = inputs()
        got, want = lowered(*given), function(*(x.double() for x in given))
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for g, w in pairs:
            assert torch.allclose(g.double(), w.double(), rtol=2e-6, atol=2e-6), sizes


def test_an_expensive_small_value_is_computed_once_and_stored():
    lowered = compiled(lambda x, b: x + torch.exp(b), torch.randn(2, 3, 5), torch.randn(5), dynamic=(BSD, D))
    assert [name.split("_")[0] for name in lowered.kernels] == ["exp", "add"]


def test_a_group_does_not_swallow_what_runs_between_its_members():
    """The product needs the first sum and feeds the second: both sums in one kernel would be a cycle."""

    def function(x, w):
        first = x + 1
        return first * 2 + first @ w

    lowered = compiled(function, torch.randn(3, 4), torch.randn(4, 4), dynamic=({0: "N"}, {}))
    x, w = torch.randint(-3, 4, (17, 4)).float(), torch.randint(-3, 4, (4, 4)).float()
    assert lowered(x, w).equal(function(x, w))
    assert 2 <= len(lowered.kernels) <= 3


def test_reductions_over_different_loops_are_different_kernels():
    def function(x):
        return x.sum(-1).sum(-1), x.amax(0)

    lowered = compiled(function, torch.randn(3, 4, 5), dynamic=(BSD,))
    assert len(lowered.kernels) == 3
    x = torch.randint(-3, 4, (2, 17, 33)).float()
    assert all(got.equal(want) for got, want in zip(lowered(x), function(x), strict=True))


def test_a_value_used_inside_and_outside_is_stored_once():
    def function(x, y):
        residual = x + y
        return residual, F.silu(residual).sum(-1)

    lowered = compiled(function, torch.randn(2, 3, 5), torch.randn(2, 3, 5), dynamic=(BSD, BSD))
    assert len(lowered.kernels) == 1
    x, y = torch.randn(2, 4, 40), torch.randn(2, 4, 40)
    residual, total = lowered(x, y)
    assert residual.equal(x + y)
    assert torch.allclose(total, F.silu(x + y).sum(-1), atol=1e-5)


def test_results_are_written_to_output_buffers_directly():
    lowered = compiled(lambda x: (torch.exp(x), (x + 1).transpose(0, 1)), torch.randn(3, 4), dynamic=({0: "N"},))
    roles = {buffer.role for buffer in lowered.plan.buffers.values()}
    assert roles == {"input", "output"}
    assert not any(row.kernel.startswith("copy") for row in lowered.plan.rows)


def test_guarded_memory_is_never_left():
    """Every buffer between unreadable pages, poisoned: a read or write outside ends the process."""
    lowered = compiled(
        layer_norm, torch.randn(2, 3, 5), torch.randn(5), torch.randn(5), dynamic=(BSD, D, D), guard=True, isolated=True
    )
    for shape in ((1, 1, 1), (2, 3, 17), (3, 1, 31), (0, 2, 5), (2, 3, 64)):
        x, w, b = torch.randn(shape), torch.randn(shape[2]), torch.randn(shape[2])
        want = layer_norm(x.double(), w.double(), b.double())
        assert torch.allclose(lowered(x, w, b).double(), want, rtol=1e-5, atol=1e-5)
