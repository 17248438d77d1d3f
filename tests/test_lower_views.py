"""View ops cost nothing where strides can express them, and one copy where they cannot."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

BSD = ({0: "B", 1: "S", 2: "D"},)
SIZES = [(1, 1, 1), (2, 3, 5), (3, 17, 33), (2, 0, 4)]

FREE = {
    "transpose": lambda x: x.transpose(1, 2) * 2,
    "permute": lambda x: x.permute(2, 0, 1) * 2,
    "unsqueeze": lambda x: x.unsqueeze(-2) + 1,
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1) + 1,
    "merged": lambda x: x.reshape(-1, x.shape[2]) * 2,
    "expand": lambda x: x[:, None].expand(-1, 3, -1, -1) * 2,
}


@pytest.mark.parametrize("name", FREE)
def test_a_view_read_by_an_elementwise_op_adds_no_row(name):
    function = FREE[name]
    lowered = compiled(function, torch.randn(2, 3, 5), dynamic=BSD)
    assert len(lowered.kernels) == 1
    for sizes in SIZES:
        x = torch.randn(sizes)
        assert lowered(x).equal(function(x)), sizes


WINDOWS = {
    "select": lambda x: x[..., 3] * 2,
    "select from the end": lambda x: x[..., -2] * 2,
    "slice": lambda x: x[..., 2:6] * 2,
    "slice from the end": lambda x: x[..., -3:] * 2,
    "slice past the end": lambda x: x[..., 5:99] * 2,
    "step": lambda x: x[..., 1::3] * 2,
    "two parts": lambda x: x[..., :4] * x[..., 4:],
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_read_by_an_elementwise_op_adds_no_row(name):
    function = WINDOWS[name]
    lowered = compiled(function, torch.randn(2, 3, 8), dynamic=({0: "B", 1: "S"},))
    assert len(lowered.kernels) == 1
    for sizes in ((1, 1, 8), (2, 17, 8), (0, 3, 8)):
        x = torch.randn(sizes)
        assert lowered(x).equal(function(x)), sizes


def test_a_reshape_that_strides_cannot_express_copies_once():
    def function(x):
        return x.transpose(1, 2).reshape(x.shape[0], -1) + 1

    lowered = compiled(function, torch.randn(2, 3, 5), dynamic=BSD)
    assert len(lowered.kernels) == 2
    for sizes in SIZES:
        x = torch.randn(sizes)
        assert lowered(x).equal(function(x)), sizes


def test_returned_views_of_an_input():
    def function(x):
        return x.transpose(0, 1), x[..., 1:], x.unsqueeze(0)

    lowered = compiled(function, torch.randn(4, 3, 5), dynamic=({0: "B", 1: "S"},))
    assert lowered.kernels == []
    x = torch.randn(7, 2, 5)
    for got, want in zip(lowered(x), function(x), strict=True):
        assert got.equal(want)


def test_a_returned_broadcast_is_written_out():
    lowered = compiled(lambda x: x.expand(4, -1, -1), torch.randn(1, 3, 5), dynamic=({1: "S", 2: "D"},))
    x = torch.randn(1, 2, 17)
    assert lowered(x).equal(x.expand(4, -1, -1))


STRIDED = {
    "transposed": lambda n, m: torch.randn(m, n).t(),
    "strided": lambda n, m: torch.randn(n, 2 * m)[:, ::2],
    "offset": lambda n, m: torch.randn(n + 1, m + 3)[1:, 3:],
    "expanded": lambda n, m: torch.randn(n, 1).expand(n, m),
    "dense": torch.randn,
}


@pytest.mark.parametrize("kind", STRIDED)
def test_inputs_of_any_strides(kind):
    def function(x, y):
        return torch.relu(x) + 2 * y

    lowered = compiled(function, STRIDED[kind](3, 5), torch.randn(3, 5), dynamic=({0: "N", 1: "M"}, {0: "N", 1: "M"}))
    for n, m in ((1, 1), (2, 16), (5, 33), (40, 3)):
        x, y = STRIDED[kind](n, m), torch.randn(n, m)
        assert lowered(x, y).equal(function(x, y))
        assert lowered(x.contiguous(), y).equal(function(x, y)), "compiled strides are no promise about the caller's"


def test_catenation_writes_every_part_in_place():
    def function(x, y):
        return torch.cat([x, y, x * 2], dim=1)

    lowered = compiled(function, torch.randn(2, 3), torch.randn(2, 4), dynamic=({0: "B", 1: "S"}, {0: "B", 1: "T"}))
    for b, s, t in ((1, 1, 1), (3, 17, 5), (2, 0, 33)):
        x, y = torch.randn(b, s), torch.randn(b, t)
        assert lowered(x, y).equal(function(x, y))
