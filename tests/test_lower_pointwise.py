"""Every elementwise op against PyTorch: sizes around the vector length, special values, all element types."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lowered import compiled

from anvil.lower.generic.ops import table
from anvil.lower.generic.pointwise import Pointwise
from assay.overloads.spec import registry

aten = torch.ops.aten
SIZES = (0, 1, 15, 16, 17, 33, 1000)
SPECIAL = (0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-45, -1e-40, 3e38, -3e38, 0.5, -2.5)
N = {0: "N"}

EXACT = {
    "add": lambda x, y: x + y,
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 1.5 - x,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "sign": lambda x, y: torch.sign(x),
    "square": lambda x, y: x.square(),
    "cube": lambda x, y: x**3,
    "reciprocal": lambda x, y: torch.reciprocal(x),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu": lambda x, y: torch.relu(x),
    "clamp": lambda x, y: torch.clamp(x, -0.5, 1.0),
    "clamp tensor": lambda x, y: torch.clamp(x, max=y),
    "clamp_min": lambda x, y: torch.clamp_min(x, 0.25),
    "clamp_max": lambda x, y: torch.clamp_max(x, 0.25),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > 0,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != 1,
    "isnan": lambda x, y: torch.isnan(x),
    "where": lambda x, y: torch.where(x > y, x, y),
    "where scalar": lambda x, y: torch.where(x > y, 1.0, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -inf),
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "logical_not": lambda x, y: torch.logical_not(x),
}
# name: function, bound in ulp of f32 against f64 rounded
ELEMENTARY = {
    "exp": (torch.exp, 4),
    "log": (torch.log, 4),
    "sin": (torch.sin, 4),
    "cos": (torch.cos, 4),
    "tanh": (torch.tanh, 4),
    "erf": (torch.erf, 4),
    "sigmoid": (torch.sigmoid, 4),
    "rsqrt": (torch.rsqrt, 2),
    "sqrt": (torch.sqrt, 0),  # eager is off by an ulp where it uses a vector library
}
ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def samples(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + size)
    pair = torch.randn(2, size, generator=generator) * 3
    special = torch.tensor(SPECIAL)
    for row, shift in ((0, 0), (1, 5)):
        pair[row, : len(special)] = special.roll(shift)[:size]
    return pair[0].clone(), pair[1].clone()


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal values, NaN where NaN, and zeros of the same sign."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if not got.is_floating_point():
        return got.equal(want)
    return torch.equal(got.nan_to_num(7), want.nan_to_num(7)) and torch.equal(got.isnan(), want.isnan())


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Distance of f32 values from f64 ones in units of the last place; 0 where both are the same special value."""
    rounded = want.float()
    spacing = torch.maximum(torch.nextafter(rounded.abs(), torch.tensor(inf)) - rounded.abs(), torch.tensor(1e-45))
    distance = (got.double() - want).abs() / spacing.double()
    agree = (got == rounded) | (got.isnan() & want.isnan())
    return torch.where(agree, 0.0, distance)


@pytest.fixture(scope="module")
def exact():
    x, y = samples(16)
    return {name: compiled(function, x, y, dynamic=(N, N)) for name, function in EXACT.items()}


@pytest.mark.parametrize("name", EXACT)
def test_exact_ops_equal_eager_to_the_bit(exact, name):
    for size in SIZES:
        x, y = samples(size)
        assert same_bits(exact[name](x, y), EXACT[name](x, y)), size


def test_signs_of_zero(exact):
    zeros = torch.tensor([0.0, -0.0] * 9)
    assert torch.signbit(exact["neg"](zeros, zeros)).equal(torch.signbit(-zeros))
    assert torch.signbit(exact["mul"](zeros, -zeros)).equal(torch.signbit(zeros * -zeros))


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_are_within_their_bound(name):
    function, bound = ELEMENTARY[name]
    lowered = compiled(function, torch.randn(16), dynamic=(N,))
    for size in (*SIZES, 20_000):
        x, _ = samples(size)
        error = ulps(lowered(x), function(x.double()))
        assert not size or error.max() <= bound, (size, error.max())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_within_their_bound(name):
    """4u |x| plus 4 ulp of the result."""
    function = ACTIVATIONS[name]
    lowered = compiled(function, torch.randn(16), dynamic=(N,))
    for size in (*SIZES, 20_000):
        x, _ = samples(size)
        want = function(x.double())
        got = lowered(x)
        assert got.isnan().equal(want.isnan() | ((x == -inf) if "gelu" not in name else want.isnan()))
        finite = x.isfinite()
        bound = 4 * 2.0**-24 * x.double().abs() + 4 * 2.0**-23 * want.abs() + 2.0**-148
        assert ((got.double() - want).abs() <= bound)[finite].all(), size


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ON_INTEGERS = {
    "wrap": lambda x, y: x * y + 3,
    "neg": lambda x, y: -x,
    "abs sign": lambda x, y: x.abs() - torch.sign(y),
    "compare": lambda x, y: (x < y) | (x == 3),
    "extremes": lambda x, y: torch.maximum(x, y) + torch.minimum(x, y),
    "clamp": lambda x, y: torch.clamp(x, 2, 9),
    "bits": lambda x, y: (x & y) ^ (~x | y),
    "true division": lambda x, y: x / torch.where(y == 0, 1, y),
    "power": lambda x, y: x**3,
}


@pytest.mark.parametrize("name", ON_INTEGERS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_ops_equal_eager(dtype, name):
    function, limits = ON_INTEGERS[name], torch.iinfo(dtype)

    def pair(size):
        values = torch.randint(max(limits.min, -(2**62)), min(limits.max, 2**62), (2, size + 2)).to(dtype)
        values[0, :2] = torch.tensor([limits.min, limits.max])
        return values[0].clone(), values[1].clone()

    lowered = compiled(function, *pair(16), dynamic=(N, N))
    for size in (1, 14, 31):
        x, y = pair(size)
        assert same_bits(lowered(x, y), function(x, y)), size


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, *INTEGERS, torch.bool)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts_equal_eager(source):
    def function(x):
        return tuple(x.to(dtype) * 1 if dtype == source else x.to(dtype) for dtype in DTYPES if dtype != torch.bool)

    def values(size):
        return (
            (torch.randn(size) * 50).abs().to(source) if source == torch.uint8 else (torch.randn(size) * 50).to(source)
        )

    def positive_for_bytes(results):
        """C++ leaves negative floats to unsigned bytes undefined; PyTorch's own answers differ with the vector unit."""
        return [r for r in results if r.dtype != torch.uint8] if source.is_floating_point else list(results)

    lowered = compiled(function, values(16), dynamic=(N,))
    for size in (0, 1, 17, 40):
        x = values(size)
        got, want = positive_for_bytes(lowered(x)), positive_for_bytes(function(x))
        assert all(same_bits(g, w) for g, w in zip(got, want, strict=True)), size


def test_nan_and_zero_to_bool():
    lowered = compiled(lambda x: x.to(torch.bool), torch.randn(16), dynamic=(N,))
    x = torch.tensor([0.0, -0.0, nan, inf, 1e-45, 2.0])
    assert lowered(x).tolist() == [False, False, True, True, True, True]


PROMOTIONS = [
    (torch.int64, torch.float32),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int32),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float16),
    (torch.float64, torch.float32),
]


@pytest.mark.parametrize("left, right", PROMOTIONS, ids=str)
def test_mixed_types_promote_as_in_pytorch(left, right):
    def function(x, y):
        return x * y, x + y, x < y

    def pair(size):
        return (torch.randn(size) * 5).abs().to(left), (torch.randn(size) * 5).abs().to(right)

    lowered = compiled(function, *pair(16), dynamic=(N, N))
    for size in (1, 17, 33):
        x, y = pair(size)
        assert all(same_bits(g, w) for g, w in zip(lowered(x, y), function(x, y), strict=True))


def test_half_precision_rounds_after_every_op():
    """Fused or not, x * y + z in f16 is two roundings."""

    def function(x, y, z):
        return x * y + z

    for dtype in (torch.float16, torch.bfloat16):
        inputs = [torch.randn(500).to(dtype) for _ in range(3)]
        lowered = compiled(function, *inputs, dynamic=(N, N, N))
        assert len(lowered.kernels) == 1
        assert same_bits(lowered(*inputs), function(*inputs))


def test_sizes_as_numbers():
    lowered = compiled(lambda x: x * x.shape[0] + x.shape[0], torch.randn(16), dynamic=(N,))
    for size in (1, 17):
        x = torch.randn(size)
        assert lowered(x).equal(x * size + size)


def test_tensors_of_rank_0():
    lowered = compiled(lambda x, y: (x * y, x + 1), torch.tensor(2.0), torch.randn(16), dynamic=({}, N))
    scaled, plus_one = lowered(torch.tensor(3.0), torch.ones(5))
    assert scaled.tolist() == [3.0] * 5
    assert plus_one.shape == () and plus_one.item() == 4.0


def test_every_elementwise_op_has_a_spec_or_is_named_here():
    """A new table entry needs an entry in ``OVERLOADS`` of a file in ops/, or a row in this file."""
    titles = {
        op._schema.name.split("::")[1].strip("_") for op, build in table().items() if isinstance(build, Pointwise)
    }
    specified = {name.split(".")[1].strip("_") for name in registry(Path(__file__).parents[1] / "ops")}
    tested = {name.split()[0] for name in (*EXACT, *ELEMENTARY, *ACTIVATIONS)}
    copies = {"contiguous", "lift_fresh_copy", "convert_element_type"}  # entries shared with clone and _to_copy
    assert titles - specified - tested - copies == set()
