"""An op or a layer as data. ``ops/<name>.py`` exports ``SPECS``; nothing else has to be written to have it checked."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from assay.bounds import Bound
from assay.formats import F32, Format
from assay.strategies.shapes import Dims, Shapes
from assay.strategies.values import INTEGERS

if TYPE_CHECKING:
    from assay.metamorphic import Property

Role = Literal["data", "weight", "fixed"]
Fill = Callable[[np.random.Generator, tuple[int, ...], Dims], np.ndarray]
Kind = Literal["op", "layer"]


@dataclass(frozen=True)
class Operand:
    """One input tensor.

    Args:
        name: as in the op's formula.
        dims: dimension names, space-separated: ``"B S D"``.
        role: ``data`` takes the example's kind of values; ``weight`` may be repacked by the compiler before a call;
            ``fixed`` (indices, angles, counts) keeps what ``fill`` makes and is not rearranged with the data.
        fill: makes the values from (generator, shape, dims); without it the example's kind of values is used.
        format: element type, where it is not the case's.
    """

    name: str
    dims: str
    role: Role = "data"
    fill: Fill | None = None
    format: Format | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.dims.split())

    def shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(dims[axis] for axis in self.axes)


@dataclass(frozen=True)
class Cost:
    """What one call takes: ``flops`` operations and ``bytes`` moved, given complete dims and the element size."""

    flops: Callable[[Dims], int]
    bytes: Callable[[Dims, int], int]


@dataclass(frozen=True)
class Known:
    """One small input with its known right value.

    Args:
        title: what it shows.
        operands: one array per operand of the spec.
        right: the value, checked by hand or in exact arithmetic.
        digits: relative precision of ``right`` as printed; 0 means exact, and then the result must be equal.
        repeat: axis along which the input may be repeated to exceed a vector; empty if it may not.
        dims: sizes of the free dimensions that no operand has as an axis.
    """

    title: str
    operands: tuple[np.ndarray, ...]
    right: np.ndarray
    digits: float = 0.0
    repeat: str = ""
    dims: Dims = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class OpSpec:
    """What an op is, what it may be given, and how far its result may be off.

    Args:
        module: makes the PyTorch program under test; called once per compilation.
        golden: fp64 reference on the operands, in order.
        bound: allowed absolute error per element, see ``assay.bounds``.
        values: kinds of values inside the bound; ``specials``: kinds judged by their NaN, Inf and zero pattern too.
        exact: makes operands for which every intermediate is representable: the result must be equal to the bit.
        result: axes of the result, space-separated, as in an operand's ``dims``.
        quants: quantisation modes the op has a golden for.
        quantised: of a mode other than fp32, the fields of the spec that are others in it.
        unquantised: in a mode, the golden without it; ``large`` are the sizes at which the two are compared.
        modes: the family of variants the compiler offers for this op (``backend.modes()[modes]``).
        causal: axis name along which later positions must not change earlier results.
        properties: relations between runs that need no golden.
        known: small inputs with their right values.
        out: format of the result, where it is not the case's.
    """

    name: str
    module: Callable[[], torch.nn.Module]
    golden: Callable[..., np.ndarray]
    bound: Bound
    operands: tuple[Operand, ...]
    shapes: Shapes
    result: str
    cost: Cost
    kind: Kind = "op"
    values: tuple[str, ...] = ("normal", "positive", "cancellation", "spike", "wide", "equal", "one_hot")
    specials: tuple[str, ...] = ("zeros", "denormal", "infinite", "nan")
    dtypes: tuple[Format, ...] = (F32,)
    exact: Callable[[np.random.Generator, Dims], tuple[np.ndarray, ...]] | None = None
    quants: tuple[str, ...] = ("fp32",)
    quantised: Callable[[str], Mapping[str, Any]] | None = None
    unquantised: Callable[..., np.ndarray] | None = None
    large: Dims = field(default_factory=dict[str, int])
    modes: str = ""
    causal: str = ""
    properties: tuple[Property, ...] = ()
    signed_zero: bool = False
    known: tuple[Known, ...] = ()
    out: Format | None = None

    def in_mode(self, quant: str) -> OpSpec:
        """The spec in a quantisation mode; the same for fp32, and where the mode changes nothing."""
        if quant == "fp32" or self.quantised is None:
            return self
        return replace(self, **self.quantised(quant))

    @property
    def every_kind(self) -> tuple[str, ...]:
        """All kinds of values that any check draws."""
        return (*self.values, *self.specials, *((INTEGERS,) if self.exact else ()))

    @property
    def weights(self) -> tuple[int, ...]:
        """Positions of the operands a compiler may repack."""
        return tuple(i for i, operand in enumerate(self.operands) if operand.role == "weight")

    @property
    def dynamic(self) -> tuple[Mapping[int, str], ...]:
        """Per operand, its run-time dimensions by position."""
        fixed: set[str] = set(self.shapes.static[0]) if self.shapes.static else set()
        return tuple({i: a for i, a in enumerate(o.axes) if a not in fixed} for o in self.operands)

    def operand(self, name: str) -> int:
        """Position of an operand. Raises ``KeyError`` listing the names."""
        names = [operand.name for operand in self.operands]
        if name not in names:
            raise KeyError(f"operand of {self.name}: name={name!r}, expected one of {names}")
        return names.index(name)

    @cached_property
    def digest(self) -> str:
        """Hash of the source of everything that decides a verdict: a changed hash breaks a record's series."""
        parts = [source_of(part) for part in (self.module, self.golden, self.bound)]
        parts += [f"{o.name}:{o.dims}:{o.role}" for o in self.operands] + [*self.values, *self.specials]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def source_of(function: Callable[..., object]) -> str:
    """Source text of a function or class; of a ``partial``, with the arguments it fixes."""
    if isinstance(function, partial):
        return f"{source_of(function.func)} {function.args} {function.keywords}"
    return inspect.getsource(function)


@cache
def registry(folder: Path) -> dict[str, OpSpec]:
    """Every spec in ``folder``, by name, sorted. Raises ``ValueError`` on a name given twice."""
    found: dict[str, OpSpec] = {}
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith(("test_", "_", "conftest")):
            continue
        for spec in getattr(load(path), "SPECS", ()):
            if spec.name in found:
                raise ValueError(f"reading specs: {path} defines {spec.name!r} a second time; every name has one spec")
            found[spec.name] = spec
    return dict(sorted(found.items()))


def load(path: Path) -> ModuleType:
    """Import one spec file by path, once per process."""
    name = f"assay_ops_{path.stem}_{zlib.crc32(bytes(path)):08x}"
    if name not in sys.modules:
        module_spec = importlib.util.spec_from_file_location(name, path)
        if module_spec is None or module_spec.loader is None:
            raise ImportError(f"reading specs: cannot import {path}")
        sys.modules[name] = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
