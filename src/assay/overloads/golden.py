"""What the right result is: operands as numpy arrays in the type PyTorch computes in, and the golden's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTE
from torch._prims_common import elementwise_dtypes

from assay.overloads.spec import Form, Overload

_KINDS = {"common": PROMOTE.DEFAULT, "float": PROMOTE.INT_TO_FLOAT}


def operands(overload: Overload, form: Form, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The tensors as the golden takes them: promoted, then floats in the overload's precision, the rest as it is."""
    if overload.promote != "keep":
        dtype = computed_in(overload, form, tensors)
        tensors = [tensor.to(dtype) for tensor in tensors]
    return [_array(tensor, overload.precision) for tensor in tensors]


def computed_in(overload: Overload, form: Form, tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The type PyTorch computes in."""
    numbers = [arg for arg in form.args if isinstance(arg, (bool, int, float))] if overload.numbers else []
    return elementwise_dtypes(*tensors, *numbers, type_promotion_kind=_KINDS[overload.promote])[0]


def _array(tensor: torch.Tensor, precision: str) -> np.ndarray:
    if not tensor.is_floating_point():
        return tensor.contiguous().numpy()
    if precision == "native":
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).numpy()
    array = tensor.to(torch.float64).numpy()
    return array.astype(np.longdouble) if precision == "extended" and tensor.dtype == torch.float64 else array


def constants(overload: Overload, form: Form, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The form's constants; numbers that are values as the type has them that is computed in: integers wrapped,
    floats at least f32."""
    if not overload.numbers or not tensors:
        return form.args
    keep = overload.promote == "keep"
    dtype = tensors[0].dtype if keep else computed_in(overload, form, tensors)
    if not dtype.is_floating_point and dtype != torch.bool:
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        return tuple(np.int64(arg).astype(kind) if type(arg) is int else arg for arg in form.args)
    if not dtype.is_floating_point or dtype == torch.float64:
        return form.args
    return tuple(float(np.float32(arg)) if isinstance(arg, float) else arg for arg in form.args)


def results(
    overload: Overload, form: Form, arrays: Sequence[np.ndarray], numbers: Sequence[Any]
) -> tuple[np.ndarray, ...]:
    """What the call must return: floats as they are, everything else as int64."""
    found = (form.golden or overload.golden)(*arrays, *numbers, **form.kwargs)
    return tuple(comparable(np.asarray(result)) for result in (found if isinstance(found, tuple) else (found,)))


def comparable(array: np.ndarray) -> np.ndarray:
    """As the comparison takes it."""
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.int64)


def eager(overload: Overload, form: Form, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """PyTorch's own results: their shapes and types are what is expected."""
    with torch.no_grad():
        found: Any = overload.invoke(form, *tensors)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)
