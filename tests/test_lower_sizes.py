"""What can be proved about symbolic sizes, and which reshapes strides can express (PyTorch decides the same)."""

from __future__ import annotations

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anvil.lower.sizes import broadcast_stride, dense_order, dense_strides, is_dense, reshaped_strides, same
from anvil.runtime.plan import View

B, S, D = sympy.symbols("B S D", positive=True, integer=True)


def test_equal_expressions_are_the_same():
    assert same(B * (S + 1), B * S + B)
    assert not same(B * S, B * D)
    assert not same(B, 1)


def test_dense_strides_are_row_major():
    assert dense_strides((B, S, D)) == (S * D, D, 1)
    assert is_dense(View("x", 0, (B, 1, D), (D, 7, 1)))
    assert not is_dense(View("x", 0, (B, D), (2 * D, 1)))


@pytest.mark.parametrize(
    "sizes, strides, order",
    [
        ((B, S, D), (S * D, D, 1), (0, 1, 2)),
        ((B, S, D), (S * D, 1, S), (0, 2, 1)),
        ((B, 1, D), (D, 99, 1), (0, 1, 2)),
        ((B, S), (2 * S, 1), None),
        ((B, S), (0, 1), None),
        ((), (), ()),
    ],
)
def test_dense_order_finds_permuted_but_gapless_layouts(sizes, strides, order):
    assert dense_order(sizes, strides) == order


@pytest.mark.parametrize(
    "sizes, strides, shape, expected",
    [
        ((B, S, 4, 8), (32 * S, 32, 8, 1), (B, S, 32), (32 * S, 32, 1)),
        ((B, S, 32), (32 * S, 32, 1), (B, S, 4, 8), (32 * S, 32, 8, 1)),
        ((B, 4, S, 8), (32 * S, 8, 32, 1), (B, 4, S * 8), None),
        ((B, S, D), (S * D, D, 1), (B * S, D), (D, 1)),
        ((B, S, D), (2 * S * D, D, 1), (B * S, D), None),
        ((B, S, D), (0, D, 1), (B, S * D), (0, 1)),
        ((B, S), (S, 1), (1, B, 1, S, 1), (1, S, S, 1, 1)),
    ],
)
def test_reshapes_with_symbolic_sizes(sizes, strides, shape, expected):
    got = reshaped_strides(sizes, strides, shape)
    if expected is None:
        assert got is None
    else:
        assert got is not None
        assert all(same(n, 1) or same(a, b) for n, a, b in zip(shape, got, expected, strict=True))


@st.composite
def reshapes(draw):
    """A strided tensor and another shape of as many elements."""
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    steps = [draw(st.integers(1, 2)) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    base = torch.arange(int(torch.tensor([2 * n for n in shape] or [1]).prod())).reshape([2 * n for n in shape])
    window = base[tuple(slice(0, n * step, step) for n, step in zip(shape, steps, strict=True))]
    tensor = window.permute(order) if shape else window
    count, new = tensor.numel(), []
    while count > 1 and len(new) < 4:
        factor = draw(st.sampled_from([f for f in range(1, count + 1) if count % f == 0]))
        new.append(factor)
        count //= factor
    return tensor, (*new, count)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(case=reshapes())
def test_a_reshape_found_reads_the_same_elements_and_none_is_missed(case):
    tensor, shape = case
    strides = reshaped_strides(tuple(tensor.shape), tensor.stride(), shape)
    if strides is None:
        with pytest.raises(RuntimeError):
            tensor.view(shape)
    else:
        assert tensor.as_strided(shape, strides).equal(tensor.reshape(shape))


def test_run_time_broadcasting_reads_one_element_where_the_size_is_1():
    stride = broadcast_stride(B, D, S)
    assert stride.subs(B, 1) == 0
    assert stride.subs({B: 5, D: 7}) == 7
    assert broadcast_stride(S, D, S) == D
    assert broadcast_stride(1, D, S) == 0
