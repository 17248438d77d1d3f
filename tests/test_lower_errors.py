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


def flash(x):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)[0]


@pytest.mark.parametrize(
    ("function", "shape", "why"),
    [
        (lambda x: torch.bitwise_and(x, x), (4, 3), r"aten\.bitwise_and.*no such operation on f32 and f32"),
        (torch.nn.functional.mish, (4, 3), r"aten\.mish.*no exp of i32"),
        (flash, (2, 2, 4, 3), r"flash_attention_for_cpu.*expected scalar type"),
    ],
    ids=["operator", "function", "definition"],
)
def test_an_element_type_that_pytorch_has_no_such_op_in_is_refused(function, shape, why):
    """The exporter lets these pass: PyTorch's shape functions do not look at the type, its kernels do."""
    dtype = torch.float32 if "bitwise" in why else torch.int32
    with pytest.raises(UnsupportedError, match=why):
        compiled(function, torch.ones(shape, dtype=dtype), dynamic=({0: "N"},))
