"""A compiled program as data: buffers, and the sequence of kernel calls over views of them.

Sizes may be symbolic (sympy) until the plan is bound to concrete ones. A plan is target-independent but for the
names of its kernels; an executor runs it row by row, so any row can be intercepted and its outputs examined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import sympy

from anvil.errors import IndexRangeError, InputError, SizeError
from anvil.kernels.base import Kernel

Size = int | sympy.Expr
Role = Literal["input", "output", "weight", "cache", "temp"]


@dataclass(frozen=True)
class Buffer:
    """A dense, row-major block of memory. ``temp`` buffers live in the arena; all others belong to the caller.

    A ``cache`` buffer survives between runs. ``layout`` names the packing of a weight ("plain", "panel16", ...).
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[Size, ...]
    layout: str = "plain"


@dataclass(frozen=True)
class View:
    """A strided window on a buffer: offset, sizes and strides in elements."""

    buffer: str
    offset: Size
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass(frozen=True)
class Scalar:
    """A scalar kernel argument: an integer or, with a float ``dtype``, a real number; either may depend on sizes."""

    value: Size | float
    dtype: str


@dataclass(frozen=True)
class Row:
    """One kernel call. ``node`` is the name of the graph node it computes, ``source`` the Python line behind it."""

    kernel: str
    args: tuple[View | Scalar, ...]
    node: str
    source: str = ""


@dataclass(frozen=True)
class Check:
    """After a run the i1 output buffer ``buffer`` must be false; ``message`` says what is wrong if it is not."""

    buffer: str
    message: str
    error: type[InputError] = IndexRangeError


@dataclass(frozen=True)
class Requirement:
    """Before a run ``size`` must be at least ``least``; ``message`` says what is wrong if it is not."""

    size: Size
    least: int
    message: str


@dataclass
class Plan:
    """Everything needed to run a compiled graph, in order. ``symbols`` are the run-time sizes it depends on."""

    name: str
    symbols: tuple[str, ...]
    buffers: dict[str, Buffer]
    rows: list[Row]
    inputs: tuple[str, ...]
    outputs: tuple[View, ...]
    kernels: dict[str, Kernel]
    weights: dict[str, str] = field(default_factory=dict)  # weight buffer name -> parameter name in the captured module
    values: dict[str, View] = field(default_factory=dict)  # graph node name -> its value, in the node's own shape
    checks: tuple[Check, ...] = ()
    requirements: tuple[Requirement, ...] = ()

    def require(self, failed: Iterable[bool]) -> None:
        """Raise the error of the first check that failed; one flag for each of ``checks``."""
        for check, wrong in zip(self.checks, failed, strict=True):
            if wrong:
                raise check.error(f"running plan={self.name}: {check.message}")

    def require_sizes(self, sizes: Iterable[int]) -> None:
        """Raise :class:`SizeError` for the first requirement not met; one size for each of ``requirements``."""
        for requirement, size in zip(self.requirements, sizes, strict=True):
            if size < requirement.least:
                raise SizeError(f"running plan={self.name}: {requirement.message}")
