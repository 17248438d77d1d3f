"""Forms that many overloads share: ranks, broadcasting, constants."""

from __future__ import annotations

from typing import Any

from assay.overloads.spec import Fill, Form, Given


def one(*more: Form, fill: Fill | None = None, **kwargs: Any) -> tuple[Form, ...]:
    """One tensor: of rank 2, 0 and 3, and whatever ``more``."""
    ranks = (("matrix", "M N"), ("rank 0", ""), ("rank 3", "M 1 N"))
    return (*(Form(title, (Given(axes, fill=fill),), **kwargs) for title, axes in ranks), *more)


def two(*more: Form, second: Fill | None = None, **kwargs: Any) -> tuple[Form, ...]:
    """Two tensors: equal shapes, each broadcast along another axis, a row, and rank 0."""
    pairs = (("equal", "M N", "M N"), ("outer", "M 1", "N"), ("row", "M N", "1 N"), ("rank 0", "M N", ""))
    forms = [Form(title, (Given(a), Given(b, fill=second)), **kwargs) for title, a, b in pairs]
    return (*forms, *more)


def with_number(*numbers: Any, **kwargs: Any) -> tuple[Form, ...]:
    """One tensor and a number; the first number with every type."""
    return tuple(Form(f"with {number!r}", (Given(),), (number,), **kwargs) for number in numbers)
