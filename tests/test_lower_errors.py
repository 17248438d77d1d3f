"""What cannot be lowered is refused with the op, its arguments and the Python line."""

from __future__ import annotations

import pytest
import torch
from lowered import compiled

from anvil.errors import UnsupportedError
from anvil.graph import ops  # noqa: F401 (registers anvil::*)


def test_an_op_without_lowering_is_named_with_arguments_and_line():
    def function(x):
        return torch.special.bessel_j0(x) + 1

    with pytest.raises(UnsupportedError) as error:
        compiled(function, torch.randn(4), dynamic=({0: "N"},))
    message = str(error.value)
    assert "aten.special_bessel_j0(" in message
    assert "f32[N]" in message
    assert "test_lower_errors.py" in message


def test_a_type_without_kernels_is_refused():
    with pytest.raises(UnsupportedError, match="complex64"):
        compiled(lambda x: x + 1, torch.randn(4, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_kernel_of_another_type_is_refused_by_its_operands(dtype):
    def function(gate, up):
        return torch.ops.anvil.swiglu(gate, up)

    examples = torch.ones(3, 4, dtype=dtype), torch.ones(3, 4, dtype=dtype)
    name = "f16" if dtype == torch.float16 else "bf16"
    with pytest.raises(UnsupportedError, match=rf"kernel=swiglu.*gate is {name}, expected f32.*"):
        compiled(function, *examples, dynamic=({0: "N"}, {0: "N"}))
