"""What cannot be lowered is refused with the op, its arguments and the Python line."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

from anvil.errors import UnsupportedError


def test_an_op_without_lowering_is_named_with_arguments_and_line():
    def function(x):
        return torch.special.bessel_j0(x) + 1

    with pytest.raises(UnsupportedError) as error:
        compiled(function, torch.randn(4), dynamic=({0: "N"},))
    message = str(error.value)
    assert "aten.special_bessel_j0(" in message
    assert "f32[N]" in message
    assert "test_lower_errors.py" in message


def test_an_elementary_function_in_double_precision_is_refused():
    with pytest.raises(UnsupportedError, match="exp of f64"):
        compiled(torch.exp, torch.randn(4, dtype=torch.float64), dynamic=({0: "N"},))


def test_an_exponent_that_cannot_be_computed_is_refused():
    with pytest.raises(UnsupportedError, match=r"exponent=1\.3"):
        compiled(lambda x: x**1.3, torch.randn(4), dynamic=({0: "N"},))


def test_a_type_without_kernels_is_refused():
    with pytest.raises(UnsupportedError, match="complex64"):
        compiled(lambda x: x + 1, torch.randn(4, dtype=torch.complex64))
