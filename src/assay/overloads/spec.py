"""An overload as data: how it is called, what it must return, and how far off it may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from assay import bounds
from assay.bounds import Bound
from assay.spec import load

Fill = Callable[[np.random.Generator, tuple[int, ...], torch.dtype], torch.Tensor]
Promotion = Literal["keep", "common", "float"]
Precision = Literal["double", "extended", "native"]
Look = Literal["", "transposed", "stepped"]

#: Element types in the order of the columns of a table.
TYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")


@dataclass(frozen=True)
class Given:
    """One tensor argument.

    Args:
        axes: sizes, outermost first: letters are dynamic and equal where the letter is, numbers are fixed.
        dtype: a name of ``TYPES``, where it is not the case's.
        fill: makes the values, where they are not the example's kind.
        index: an i64 tensor with a ``fill`` holds indices: one far beyond is an error.
    """

    axes: str = "M N"
    dtype: str = ""
    fill: Fill | None = None
    index: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.axes.split())

    @property
    def dynamic(self) -> dict[int, str]:
        return {i: name for i, name in enumerate(self.names) if not name.isdigit()}

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(name) if name.isdigit() else dims[name] for name in self.names)


@dataclass(frozen=True, eq=False)
class Form:
    """One way to call an overload: its tensors, then constants. ``golden`` stands in for the overload's.

    ``look``: the tensors reach the op as views: ``transposed`` (last two axes swapped in memory), ``stepped`` (every
    second element, from the second on). ``types``: only these. ``everywhere``: in every type, in all profiles.
    """

    title: str
    tensors: tuple[Given, ...]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    golden: Callable[..., Any] | None = None
    look: Look = ""
    types: tuple[str, ...] = ()
    everywhere: bool = False


@dataclass(frozen=True, eq=False)
class Overload:
    """One overload of an op library.

    Args:
        name: as PyTorch prints it: ``aten.add.Tensor``.
        golden: the result from numpy arrays, then the form's constants; several results as a tuple. Never calls the op.
            Floats arrive in the overload's ``precision``, integers and bool as they are.
        forms: the first one is run in every type; others in a few types, in the deep profile in all.
        promote: what tensors are converted to before the golden sees them, as PyTorch computes: ``keep`` nothing,
            ``common`` their common type, ``float`` the common type and f32 for integers. Numbers in the form's
            ``args`` take part if ``numbers`` is set.
        precision: ``double`` (float64), ``extended`` (f64 as longdouble, the others float64), or ``native`` (f64 as
            float64, the others float32: for definitions in which a rounding of its own counts).
        bound: allowed absolute error per element of a floating-point result, see ``assay.bounds``; integers are exact.
        call: calls the op, where tensors are not simply its first arguments: ``call(op, *tensors, *args, **kwargs)``.
        kinds: kinds of values, names in ``assay.overloads.fill``.
        without: types that PyTorch has and this check leaves out, with the reason.
        signed_zero: zeros must have the golden's sign.
        sizes: sizes to draw from, by axis letter.
        fatal: axes of which size 0 kills PyTorch's process instead of raising, with the reason: it is not asked then,
            and what is compiled may give a result or an error.
    """

    name: str
    golden: Callable[..., Any]
    forms: tuple[Form, ...]
    promote: Promotion = "keep"
    numbers: bool = False
    bound: Bound = bounds.exact
    precision: Precision = "double"
    call: Callable[..., Any] | None = None
    kinds: tuple[str, ...] = ("mixed",)
    without: Mapping[str, str] = field(default_factory=dict[str, str])
    signed_zero: bool = False
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])
    fatal: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if unknown := [axis for axis in self.fatal if axis not in self.axes]:
            raise ValueError(f"{self.name}: fatal names {unknown}, expected axes of its forms: {list(self.axes)}")

    @property
    def op(self) -> Any:
        """The overload itself. Raises ``AttributeError`` if PyTorch has none of that name."""
        library, name, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, library), name), overload)

    def invoke(self, form: Form, *tensors: torch.Tensor) -> Any:
        if self.call is None:
            return self.op(*tensors, *form.args, **form.kwargs)
        return self.call(self.op, *tensors, *form.args, **form.kwargs)

    @cached_property
    def all_forms(self) -> tuple[Form, ...]:
        """The forms, and the first one on tensors that are views. Titles are unique."""
        first = self.forms[0]
        looks = [replace(first, title="stepped", look="stepped")] if any(g.names for g in first.tensors) else []
        if any(len(given.names) > 1 for given in first.tensors):
            looks.append(replace(first, title="transposed", look="transposed"))
        return (*self.forms, *looks)

    @property
    def axes(self) -> tuple[str, ...]:
        """Letters of all forms, sorted."""
        return tuple(sorted({name for form in self.forms for given in form.tensors for name in given.dynamic.values()}))

    @property
    def mark(self) -> str:
        """Marker of its tests: ``aten_add_Tensor``."""
        return re.sub(r"\W", "_", self.name)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The element types in which PyTorch computes the first form, but for those in ``without``."""
        return tuple(name for name in TYPES if name not in self.without and self.accepts(name, self.forms[0]))

    @cached_property
    def refused_types(self) -> tuple[str, ...]:
        """The element types for which PyTorch raises."""
        return tuple(name for name in TYPES if name not in self.without and not self.accepts(name, self.forms[0]))

    def accepts(self, dtype: str, form: Form) -> bool:
        """Whether PyTorch's own implementation takes a form in a type."""
        if form.types and dtype not in form.types:
            return False
        dims = dict.fromkeys(self.axes, 2)
        tensors = [torch.ones(g.shape(dims), dtype=TYPES[g.dtype or dtype]) for g in form.tensors]
        if any(g.fill for g in form.tensors):
            rng = np.random.default_rng(0)
            tensors = [
                t if g.fill is None else g.fill(rng, tuple(t.shape), t.dtype)
                for g, t in zip(form.tensors, tensors, strict=True)
            ]
        try:
            self.invoke(form, *tensors)
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
            return False
        return True


@cache
def registry(folder: Path) -> dict[str, Overload]:
    """Every overload in ``folder``, by name, sorted. Raises ``ValueError`` on one given twice."""
    found: dict[str, Overload] = {}
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith(("test_", "_", "conftest")):
            continue
        for overload in getattr(load(path), "OVERLOADS", ()):
            if overload.name in found:
                raise ValueError(f"reading specs: {path} defines {overload.name!r} a second time")
            found[overload.name] = overload
    return dict(sorted(found.items()))
