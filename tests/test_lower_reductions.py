"""Reductions, softmax, positions of extremes: against f64 under their bounds, in any layout."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from lowered import compiled
from test_lower_pointwise import same_bits

BS = ({0: "B", 1: "S"},)
SIZES = [(1, 1), (2, 5), (3, 16), (7, 33), (40, 100), (2, 0)]
U32 = 2.0**-24

SUMS = {
    "sum": lambda x: x.sum(-1),
    "sum keepdim": lambda x: x.sum(-1, keepdim=True),
    "sum over rows": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(1),
    "mean over rows": lambda x: x.mean(0, keepdim=True),
    "sum of squares": lambda x: (x * x).sum(-1),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_within_their_bound(name):
    """c √K u S with c = 4, K terms, S the same sum over absolute values."""
    function = SUMS[name]
    lowered = compiled(function, torch.randn(3, 4), dynamic=BS)
    assert len(lowered.kernels) == 1
    for b, s in SIZES:
        x = torch.randn(b, s)
        want, scale = function(x.double()), function(x.double().abs())
        bound = 4 * max(b, s, b * s if "all" in name else 0) ** 0.5 * U32 * scale + U32 * want.abs()
        got = lowered(x)
        assert got.shape == want.shape
        assert ((got.double() - want).abs() <= bound)[~want.isnan()].all(), (b, s)
        assert got.isnan().equal(want.isnan()), "the mean of nothing is NaN"


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_small_integers_are_exact(name):
    function = SUMS[name]
    lowered = compiled(function, torch.randn(3, 4), dynamic=BS)
    for b, s in ((1, 1), (2, 32), (4, 64), (16, 128)):
        x = torch.randint(-8, 9, (b, s)).float()
        assert lowered(x).equal(function(x.double()).float())


EXTREMES = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "max of all": torch.max,
    "min of all": torch.min,
    "argmax": lambda x: x.argmax(0),
    "argmax of all": torch.argmax,
    "argmin": lambda x: x.argmin(1, keepdim=True),
    "max with index": lambda x: tuple(torch.max(x, 1)),
    "min with index": lambda x: tuple(torch.min(x, 0, keepdim=True)),
    "index only": lambda x: torch.max(x, 1)[1],
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.float64], ids=str)
def test_extremes_equal_eager(name, dtype):
    function = EXTREMES[name]
    lowered = compiled(function, torch.ones(3, 4, dtype=dtype), dynamic=BS)
    for b, s in SIZES[:-1]:
        x = torch.randint(0, 9, (b, s)).to(dtype)
        got, want = lowered(x), function(x)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        assert all(same_bits(g, w) for g, w in pairs), (b, s)


@pytest.mark.parametrize(
    "row, position",
    [([nan, 4.6151], 0), ([2, nan, 7], 1), ([1, nan, nan], 1), ([nan, nan], 0), ([-inf, -inf], 0), ([3, 7, 7], 1)],
)
def test_the_first_nan_wins_then_the_first_of_equals(row, position):
    lowered = compiled(lambda x: x.argmax(0), torch.randn(3), dynamic=({0: "N"},))
    assert lowered(torch.tensor(row, dtype=torch.float32)).item() == position


def test_the_maximum_of_infinities():
    lowered = compiled(lambda x: x.amax(-1), torch.randn(3, 2), dynamic=BS)
    rows = torch.tensor([[-inf, -inf], [-inf, -3.4e38], [nan, 1]])
    assert same_bits(lowered(rows), rows.amax(-1))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_is_within_its_bound(dim):
    lowered = compiled(lambda x: torch.softmax(x, dim), torch.randn(3, 4), dynamic=BS)
    assert len(lowered.kernels) == 1
    for b, s in SIZES:
        x = torch.randn(b, s) * 5
        want = torch.softmax(x.double(), dim)
        count = (b, s)[dim]
        # relative 2 max|δs| + (c√N + 8) u: δs is the rounding of x - max, c = 4
        spread = (x.amax(dim, keepdim=True) - x) if count else x
        relative = 2 * U32 * spread.double() + (4 * max(count, 1) ** 0.5 + 8) * U32
        assert ((lowered(x).double() - want).abs() <= relative * want + 2.0**-149).all(), (b, s)


def test_softmax_of_infinities_is_nan_and_of_one_infinite_row_too():
    lowered = compiled(lambda x: torch.softmax(x, -1), torch.randn(3, 2), dynamic=BS)
    x = torch.tensor([[-inf, -inf], [inf, 0.0], [0.0, -inf], [nan, 0.0]])
    assert same_bits(lowered(x), torch.softmax(x, -1))


def test_log_softmax():
    lowered = compiled(lambda x: torch.log_softmax(x, -1), torch.randn(3, 4), dynamic=BS)
    for b, s in SIZES[:-1]:
        x = torch.randn(b, s) * 5
        want = torch.log_softmax(x.double(), -1)
        assert ((lowered(x).double() - want).abs() <= (4 * s**0.5 + 8) * U32 * (1 + want.abs())).all()


def test_reductions_over_several_dimensions():
    def function(x):
        return x.sum((0, 2)), x.amax((1, 2), keepdim=True), x.mean((0, 1, 2))

    lowered = compiled(function, torch.randn(2, 3, 4), dynamic=({0: "A", 1: "B", 2: "C"},))
    for shape in ((1, 1, 1), (2, 5, 17), (3, 4, 33)):
        x = torch.randint(-4, 5, shape).float()
        for got, want in zip(lowered(x), function(x.double()), strict=True):
            assert torch.allclose(got.double(), want, rtol=1e-6, atol=0)


def test_integers_and_bools_reduce_to_the_types_of_pytorch():
    def function(x, mask):
        return x.sum(-1), x.prod(-1), mask.any(-1), mask.all(), mask.sum()

    lowered = compiled(
        function, torch.ones(3, 4, dtype=torch.int8), torch.ones(3, 4, dtype=torch.bool), dynamic=BS + BS
    )
    for b, s in SIZES:
        x, mask = torch.randint(-128, 128, (b, s), dtype=torch.int8), torch.rand(b, s) > 0.1
        for got, want in zip(lowered(x, mask), function(x, mask), strict=True):
            assert same_bits(got, want)


def test_what_is_reduced_may_be_picked():
    def function(x, y, i):
        return (x[i] * y).sum(-1), x[i] @ y.t()

    examples = torch.randn(3, 4), torch.randn(2, 4), torch.tensor([1, 2])
    lowered = compiled(function, *examples, dynamic=(*BS, {0: "I", 1: "S"}, {0: "I"}))
    for b, s in SIZES:
        x, y, i = torch.randint(-4, 5, (b, s)).float(), torch.randint(-4, 5, (5, s)).float(), torch.randint(-b, b, (5,))
        for got, want in zip(lowered(x, y, i), function(x, y, i), strict=True):
            assert same_bits(got, want), (b, s)


def test_half_precision_accumulates_in_f32():
    lowered = compiled(lambda x: x.sum(-1), torch.ones(2, 4, dtype=torch.float16), dynamic=BS)
    assert lowered(torch.ones(1, 4097, dtype=torch.float16)).item() == 4096.0  # an f16 sum sticks at 2048


def test_a_row_does_not_depend_on_its_neighbours_or_threads():
    lowered = compiled(lambda x: torch.softmax(x * 3, -1).sum(-1), torch.randn(3, 4), dynamic=BS)
    x = torch.randn(33, 100)
    whole = lowered(x)
    assert whole.equal(lowered(x, threads=2))
    for row in (0, 17, 32):
        assert whole[row].equal(lowered(x[row : row + 1])[0])


@pytest.mark.parametrize(
    ("function", "hints"),
    [(lambda x: torch.softmax(x, -1), 2), (lambda x: x.sum(-1), 0), (lambda x: torch.softmax(x, 0), 0)],
    ids=["walked again", "walked once", "columns"],
)
def test_only_rows_that_are_walked_again_ask_for_the_next(function, hints):
    """What is read and what is written, each once: otherwise the prefetchers of the hardware do as well."""
    plan = compiled(function, torch.randn(3, 40)).plan
    assert sum(kernel.mlir.count("memref.prefetch") for kernel in plan.kernels.values()) == hints
