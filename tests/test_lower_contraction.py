"""Matrix products of the generic path: exact on small integers, bounded on floats, any transposition."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

PRODUCTS = {
    "mm": (lambda x, y: x @ y, "mk,kn"),
    "x transposed": (lambda x, y: x.t() @ y, "km,kn"),
    "y transposed": (lambda x, y: x @ y.t(), "mk,nk"),
    "bmm": (torch.bmm, "bmk,bkn"),
    "batch of y transposed": (lambda x, y: x @ y.transpose(-1, -2), "bmk,bnk"),
    "batch times matrix": (torch.matmul, "bmk,kn"),
    "mv": (torch.mv, "mk,k"),
    "dot": (torch.dot, "k,k"),
    "linear": (torch.nn.functional.linear, "bmk,nk"),
    "factors computed on the way": (lambda x, y: (x + 1) @ (2 * y - 3), "mk,kn"),
    "scaled": (lambda x, y: torch.relu(x @ y * 0.5 + 1), "mk,kn"),
}
SIZES = [
    {"b": 1, "m": 1, "k": 1, "n": 1},
    {"b": 2, "m": 3, "k": 17, "n": 33},
    {"b": 3, "m": 16, "k": 5, "n": 16},
    {"b": 2, "m": 2, "k": 0, "n": 3},
]


def operands(pattern, sizes, draw):
    return [draw([sizes[letter] for letter in letters]) for letters in pattern.split(",")]


def small_integers(shape):
    return torch.randint(-4, 5, shape).float()


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_exact_on_small_integers(name):
    function, pattern = PRODUCTS[name]
    dynamic = tuple({dim: letter.upper() for dim, letter in enumerate(letters)} for letters in pattern.split(","))
    examples = operands(pattern, {"b": 2, "m": 3, "k": 4, "n": 5}, torch.randn)
    lowered = compiled(function, *examples, dynamic=dynamic)
    assert len(lowered.kernels) == 1
    for sizes in SIZES:
        x, y = operands(pattern, sizes, small_integers)
        want = function(x.double(), y.double()).float()
        assert lowered(x, y).equal(want), sizes
        assert lowered(x, y, threads=2).equal(want), sizes


WITH_ITSELF = {
    "vector": (lambda x: torch.dot(y := x - 2, y), "k"),
    "matrix and its transpose": (lambda x: (y := x - 2) @ y.t(), "mk"),
    "transpose and its matrix": (lambda x: (y := x - 2).t() @ y, "mk"),
    "batch": (lambda x: (y := x - 2) @ y.transpose(1, 2), "bmk"),
    "outer product": (lambda x: (y := x - 2)[:, None] * y, "k"),
    "differences": (lambda x: ((y := x - 2)[:, None] - y[None]).abs().sum(-1), "mk"),
    "sum with the transpose": (lambda x: (y := x - 2) + y.t(), "mm"),
}


@pytest.mark.parametrize("name", WITH_ITSELF)
def test_a_computed_tensor_may_meet_itself_along_another_dimension(name):
    function, letters = WITH_ITSELF[name]
    dynamic = ({dim: letter.upper() for dim, letter in enumerate(letters)},)
    (example,) = operands(letters, {"b": 2, "m": 3, "k": 4}, torch.randn)
    lowered = compiled(function, example, dynamic=dynamic, guard=True)
    for sizes in SIZES[:3]:
        (x,) = operands(letters, sizes, small_integers)
        assert lowered(x).equal(function(x.double()).float()), sizes


def test_products_are_within_their_bound():
    lowered = compiled(torch.mm, torch.randn(3, 4), torch.randn(4, 5), dynamic=({0: "M", 1: "K"}, {0: "K", 1: "N"}))
    for m, k, n in ((5, 300, 7), (1, 1000, 33)):
        x, y = torch.randn(m, k), torch.randn(k, n)
        error = (lowered(x, y).double() - x.double() @ y.double()).abs()
        assert (error <= 4 * k**0.5 * 2.0**-24 * (x.double().abs() @ y.double().abs())).all()


@pytest.mark.parametrize("size", [4, 5, 17])
def test_the_accumulator_is_added(size):
    def function(c, x, y):
        return torch.addmm(c, x, y), torch.addmm(c, x, y, beta=2, alpha=3)

    square = {0: "N", 1: "N"}
    lowered = compiled(function, *[torch.ones(3, 3)] * 3, dynamic=(square, square, square))
    plain, scaled = lowered(*[torch.ones(size, size)] * 3)
    assert plain.equal(torch.full((size, size), size + 1.0))
    assert scaled.equal(torch.full((size, size), 3.0 * size + 2))


def test_baddbmm_broadcasts_its_accumulator():
    def function(c, x, y):
        return torch.baddbmm(c, x, y, beta=0.5)

    c, x, y = small_integers((1, 1, 5)), small_integers((3, 17, 2)), small_integers((3, 2, 5))
    lowered = compiled(function, c, x, y)  # PyTorch's own shape function takes no symbolic sizes here
    assert lowered(c, x, y).equal(function(c, x, y))


def test_a_matrix_times_itself():
    lowered = compiled(lambda x: x @ x, torch.randn(3, 3), dynamic=({0: "N", 1: "N"},))
    x = small_integers((17, 17))
    assert lowered(x).equal(x @ x)


def test_half_precision_products_round_once():
    for dtype in (torch.float16, torch.bfloat16):
        x, y = torch.randn(5, 300).to(dtype), torch.randn(300, 7).to(dtype)
        lowered = compiled(torch.mm, x, y, dynamic=({0: "M", 1: "K"}, {0: "K", 1: "N"}))
        want = x.double() @ y.double()
        bound = torch.finfo(dtype).eps / 2 * want.abs() + 4 * 300**0.5 * 2.0**-24 * (
            x.double().abs() @ y.double().abs()
        )
        assert ((lowered(x, y).double() - want).abs() <= bound).all()
