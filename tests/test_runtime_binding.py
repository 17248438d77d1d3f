"""Words of a plan: every size, stride, pointer and scalar in its place, and rewritten only when it must be."""

import struct

import numpy as np
import pytest
import sympy
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Mod

from anvil.errors import InputError
from anvil.kernels.base import Kernel, Param
from anvil.runtime.binding import Binding, compile_sizes, concrete
from anvil.runtime.plan import Buffer, Plan, Row, Scalar, View

M, K = sympy.symbols("M K", integer=True, positive=True)
SCALE = Kernel("scale", (Param("x", "in", "f32", 2), Param("y", "out", "f32", 2), Param("a", "scalar", "f32", -1)), "")
COUNT = Kernel("count", (Param("n", "scalar", "index", -1), Param("y", "out", "i64", 1)), "")


def small_plan(rows=None):
    return Plan(
        name="small",
        symbols=("M", "K"),
        buffers={
            "x": Buffer("x", "input", "f32", (M, K)),
            "y": Buffer("y", "output", "f32", (K, M)),
            "n": Buffer("n", "output", "i64", (1,)),
        },
        rows=rows
        or [
            Row("scale", (View("x", K, (M - 1, K), (K, 1)), View("y", 0, (M, K), (1, M)), Scalar(0.5, "f32")), "s"),
            Row("count", (Scalar(M * K, "index"), View("n", 0, (1,), (1,))), "c"),
        ],
        inputs=("x",),
        outputs=(View("y", 0, (M, K), (1, M)), View("n", 0, (1,), (1,))),
        kernels={"scale": SCALE, "count": COUNT},
    )


def test_words_follow_the_kernel_abi():
    binding = Binding(small_plan())
    binding.place({"x": 1000, "y": 2000, "n": 3000})
    binding.bind({"M": 5, "K": 3})
    half = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    x = [1000, 1000, 3, 4, 3, 3, 1]
    y = [2000, 2000, 0, 5, 3, 1, 5]
    assert binding.words.tolist() == [*x, *y, half, 15, 3000, 3000, 0, 1, 1]
    assert binding.program({"scale": 7, "count": 8}).tolist() == [[7, 0], [8, 15]]


def test_binding_again_equals_binding_afresh():
    binding = Binding(small_plan())
    for m, k in [(5, 3), (5, 4), (1, 4), (1, 4), (9, 9)]:
        binding.bind({"M": m, "K": k})
        fresh = Binding(small_plan())
        fresh.bind({"M": m, "K": k})
        assert np.array_equal(binding.words, fresh.words)


def test_binding_rewrites_only_words_that_depend_on_a_changed_size():
    binding = Binding(small_plan())
    binding.bind({"M": 5, "K": 3})
    binding.words[:] = -1
    binding.bind({"M": 6, "K": 3})
    x, y = [-1, -1, -1, 5, -1, -1, -1], [-1, -1, -1, 6, -1, -1, 6]
    assert binding.words.tolist() == [*x, *y, -1, 18, -1, -1, -1, -1, -1]


def test_shapes_bytes_and_views_are_concrete():
    binding = Binding(small_plan())
    values = {"M": 5, "K": 3}
    assert binding.shapes(values) == {"x": (5, 3), "y": (3, 5), "n": (1,)}
    assert binding.nbytes(values) == {"x": 60, "y": 60, "n": 8}
    assert concrete(View("x", M + 1, (M, 2), (K, 1)), values) == (6, (5, 2), (3, 1))


def test_a_float_scalar_may_depend_on_sizes():
    whole = View("x", 0, (M, K), (K, 1))
    row = Row("scale", (whole, View("y", 0, (M, K), (1, M)), Scalar(1 / sympy.sqrt(K), "f32")), "s")
    binding = Binding(small_plan([row]))
    for k in (4, 64, 3):
        binding.bind({"M": 1, "K": k})
        assert binding.words[-1] == struct.unpack("<I", struct.pack("<f", k**-0.5))[0]


def test_missing_size_is_named():
    with pytest.raises(InputError, match=r"plan=small.*\['K'\]"):
        Binding(small_plan()).bind({"M": 1})


def test_unknown_symbol_in_a_size_is_named():
    with pytest.raises(InputError, match="Q"):
        compile_sizes([sympy.Symbol("Q") + 1], ("M",))


def test_wrong_rank_names_node_and_kernel():
    row = Row("count", (Scalar(1, "index"), View("x", 0, (M, K), (K, 1))), "oops")
    with pytest.raises(InputError, match=r"node=oops: kernel=count"):
        Binding(small_plan([row]))


def test_wrong_dtype_names_node_and_kernel():
    row = Row("count", (Scalar(1, "index"), View("x", 0, (M,), (1,))), "oops")
    with pytest.raises(InputError, match=r"i64.*f32"):
        Binding(small_plan([row]))


@pytest.mark.parametrize("m", [0, 1, 15, 16, 17, 48, 49, 2**40 + 1])
def test_division_in_sizes_is_exact(m):
    n = sympy.Symbol("M", integer=True, nonnegative=True)
    exprs = [CeilDiv(n, 48), FloorDiv(n, 16), Mod(n, 7), sympy.ceiling(n / 48), sympy.floor(n / 16), sympy.Max(1, n)]
    assert compile_sizes(exprs, ("M",))(m) == [-(-m // 48), m // 16, m % 7, -(-m // 48), m // 16, max(1, m)]
