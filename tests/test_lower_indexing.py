"""Elements picked by index tensors, and tensors that are computed from positions."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

from anvil.graph import ops  # noqa: F401 (registers anvil::*)

ND, M = {0: "N", 1: "D"}, {0: "M"}
SIZES = [(1, 1, 1), (5, 33, 7), (3, 16, 40)]


def indices(low, high, *shape):
    return torch.randint(low, high, shape)


CASES = {
    "rows": (lambda x, i: x[i], lambda n, d, m: indices(-n, n, m), M),
    "columns": (lambda x, i: x[:, i], lambda n, d, m: indices(-d, d, m), M),
    "index_select": (lambda x, i: torch.index_select(x, 1, i), lambda n, d, m: indices(0, d, m), M),
    "gather": (lambda x, i: torch.gather(x, 1, i), lambda n, d, m: indices(0, d, n, m), {0: "N", 1: "M"}),
    "gather from rows": (lambda x, i: torch.gather(x, 0, i), lambda n, d, m: indices(0, n, m, d), {0: "M", 1: "D"}),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), lambda n, d, m: indices(0, n, m, 2), M),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
def test_picking_equals_eager(name, dtype):
    function, draw, dynamic = CASES[name]
    lowered = compiled(function, torch.ones(5, 4, dtype=dtype), draw(5, 4, 3), dynamic=(ND, dynamic))
    for n, d, m in SIZES:
        x, i = (torch.randn(n, d) * 9).to(dtype), draw(n, d, m)
        assert lowered(x, i).equal(function(x, i)), (n, d, m)


def test_index_tensors_that_stand_apart_come_first():
    def function(x, i, j):
        return x[i, :, j]

    lowered = compiled(function, torch.randn(5, 3, 4), indices(0, 5, 2, 1), indices(0, 4, 3), dynamic=({}, {}, {}))
    x, i, j = torch.randn(5, 3, 4), indices(-5, 5, 2, 1), indices(-4, 4, 3)
    assert lowered(x, i, j).equal(function(x, i, j))


def test_the_index_of_a_strided_tensor():
    def function(x, i):
        return x.t()[i]

    lowered = compiled(function, torch.randn(5, 4), indices(0, 4, 3), dynamic=(ND, M))
    x, i = torch.randn(7, 33), indices(0, 33, 20)
    assert lowered(x, i).equal(function(x, i))


def test_take_row():
    def function(x, last):
        return torch.ops.anvil.take_row(x, last)

    lowered = compiled(
        function, torch.randn(2, 3, 4), torch.tensor([1, 2]), dynamic=({0: "B", 1: "S", 2: "D"}, {0: "B"})
    )
    for b, s, d in ((1, 1, 1), (2, 5, 33), (3, 7, 16)):
        x, last = torch.randn(b, s, d), indices(0, s, b)
        assert lowered(x, last).equal(function(x, last))


def test_positions_are_computed_where_they_are_needed():
    def function(x):
        position = torch.arange(x.shape[0])
        mask = position[None, :] <= position[:, None] + 1
        return x * position[:, None] + torch.ones(3), mask

    lowered = compiled(function, torch.randn(4, 3), dynamic=({0: "N"},))
    assert len(lowered.kernels) == 2, "neither arange nor ones is ever in memory"
    for n in (1, 7, 20):
        x = torch.randn(n, 3)
        for got, want in zip(lowered(x), function(x), strict=True):
            assert got.equal(want)


@pytest.mark.parametrize("turned", [False, True])
def test_a_table_of_positions_may_be_read_along_two_dimensions(turned):
    def function(x):
        position = torch.arange(x.shape[0])
        row, column = position[:, None], position[None, :]
        if turned:
            row, column = column, row
        return (column <= row) & (column > row - 4), (row * 2 + column).to(torch.int32)

    lowered = compiled(function, torch.randn(9), dynamic=({0: "N"},))
    for n in (1, 6, 33):
        for got, want in zip(lowered(torch.zeros(n)), function(torch.zeros(n)), strict=True):
            assert got.equal(want), n


FACTORIES = {
    "arange": lambda x: torch.arange(x.shape[0]),
    "start and step": lambda x: torch.arange(3, 3 + 2 * x.shape[0], 2),
    "fractional": lambda x: torch.arange(0.0, 2.0, 0.25) * 1,
    "full": lambda x: torch.full((x.shape[0], 2), 7.5),
    "zeros": lambda x: torch.zeros_like(x),
    "ones": lambda x: torch.ones(x.shape[0], dtype=torch.bool),
    "from a size": lambda x: torch.full((3,), x.shape[0]),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_equal_eager(name):
    function = FACTORIES[name]
    lowered = compiled(lambda x: (function(x), x + 1), torch.randn(4), dynamic=({0: "N"},))
    for n in (1, 17):
        got, want = lowered(torch.randn(n))[0], function(torch.randn(n))
        assert got.dtype == want.dtype and got.equal(want)


def test_a_dense_and_a_strided_source_do_not_share_a_kernel():
    def function(x, y, i):
        return x[:, i], y[..., 1][:, i]

    examples = torch.randn(5, 4), torch.randn(5, 4, 2), indices(0, 4, 3)
    lowered = compiled(function, *examples, dynamic=(ND, ND, M))
    x, y, i = torch.randn(9, 33), torch.randn(9, 33, 2), indices(0, 33, 20)
    for got, want in zip(lowered(x, y, i), function(x, y, i), strict=True):
        assert got.equal(want)


def test_positions_can_be_picked_from_too():
    def function(x, i):
        return x[i] + (torch.arange(x.shape[0])[:, None] * 2 + torch.arange(3))[i, 1][:, None], torch.arange(9)[3:][i]

    lowered = compiled(function, torch.randn(5, 4), indices(0, 5, 3), dynamic=(ND, M))
    x, i = torch.randn(6, 33), indices(0, 6, 20)
    for got, want in zip(lowered(x, i), function(x, i), strict=True):
        assert got.equal(want)


def test_operands_alike_in_type_and_shape_are_not_taken_for_one_another() -> None:
    """Equal calls share what is inferred of their results; a written-out operation must still tell them apart."""

    def function(x, index, source):
        return x.scatter_add(1, index.select(-1, 1), source.select(-1, 1))

    example = (torch.zeros(4, 7, dtype=torch.int64), *(torch.zeros(4, 5, 2, dtype=torch.int64) for _ in range(2)))
    program = compiled(function, *example, dynamic=({0: "M"}, {0: "M", 1: "N"}, {0: "M", 1: "N"}))
    inputs = (
        torch.arange(14).reshape(2, 7),
        torch.arange(12).reshape(2, 3, 2) % 7,
        torch.arange(12).reshape(2, 3, 2) * 10,
    )
    assert program(*inputs).equal(function(*inputs))
