"""Many calls of one overload as one program: compiled once, every size dynamic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.backends.protocol import Program
from assay.overloads.fill import KINDS
from assay.overloads.spec import TYPES, Form, Given, Overload, registry

#: Sizes of the example that is compiled: all different, so that none look equal by chance.
COMPILE_SIZES = (3, 5, 7, 4, 6, 9, 11, 13)


@dataclass(frozen=True)
class Call:
    """One form of an overload in one element type."""

    form: Form
    dtype: str

    def dtype_of(self, given: Given) -> torch.dtype:
        return TYPES[given.dtype or self.dtype]


def stored_axes(form: Form, given: Given) -> Given:
    """The tensor in memory that ``given`` is seen in, in the form's look."""
    names = given.names
    if form.look == "transposed" and len(names) > 1:
        return Given(" ".join([*names[:-2], names[-1], names[-2]]), given.dtype, given.fill)
    if form.look == "stepped" and names:
        return Given(f"{given.axes} 2", given.dtype, given.fill)
    return given


def seen(form: Form, given: Given, tensor: torch.Tensor) -> torch.Tensor:
    """The view of a stored tensor that the op is given."""
    if form.look == "transposed" and len(given.names) > 1:
        return tensor.transpose(-1, -2)
    return tensor.select(-1, 1) if form.look == "stepped" and given.names else tensor


class Calls(torch.nn.Module):
    """The calls one after the other, each on tensors of its own; all results in one flat tuple."""

    def __init__(self, folder: Path, overload: Overload, calls: Sequence[Call]) -> None:
        super().__init__()
        self.folder, self.overload, self.calls = folder, overload, tuple(calls)

    def __reduce__(self) -> Any:
        """Equal programs have equal pickles, though the functions in a spec have none."""
        return _again, (self.folder, self.overload.name, tuple((c.form.title, c.dtype) for c in self.calls))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: list[torch.Tensor] = []
        left = iter(tensors)
        for call in self.calls:
            arguments = [seen(call.form, given, next(left)) for given in call.form.tensors]
            result = self.overload.invoke(call.form, *arguments)
            found.extend(result if isinstance(result, (tuple, list)) else (result,))
        return tuple(found)


def _again(folder: Path, name: str, chosen: Sequence[tuple[str, str]]) -> Calls:
    """The calls of these titles and types."""
    overload = registry(folder)[name]
    forms = {form.title: form for form in overload.all_forms}
    return Calls(folder, overload, [Call(forms[title], dtype) for title, dtype in chosen])


def program(folder: Path, overload: Overload, calls: Sequence[Call]) -> Program:
    """What a backend is asked to compile."""
    dims = dict(zip(overload.axes, COMPILE_SIZES, strict=False))
    rng = np.random.default_rng(0)
    examples: list[torch.Tensor] = []
    dynamic: list[Mapping[int, str]] = []
    for call in calls:
        for given in call.form.tensors:
            stored = stored_axes(call.form, given)
            fill = given.fill or KINDS[overload.kinds[0]]
            examples.append(fill(rng, stored.shape(dims), call.dtype_of(given)))
            dynamic.append(stored.dynamic)
    return Program(overload.name, Calls(folder, overload, calls), tuple(examples), tuple(dynamic))
