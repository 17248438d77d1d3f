"""Case: what is checked. Example: one input of it. Both have a stable id, the same in test, record and ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from assay.formats import Format, accumulator
from assay.spec import Known, Operand, OpSpec
from assay.strategies import layouts, values


@dataclass(frozen=True)
class Case:
    """One spec in one dtype, quantisation mode and variant, on one target."""

    spec: OpSpec
    format: Format
    target: str
    quant: str = "fp32"
    variant: str = ""

    @cached_property
    def id(self) -> str:
        """``rms_norm-f32-aarch64_neon``; ``attention-flash-f32-w8-x86_64_avx2`` with a variant and a mode."""
        quant = "" if self.quant == "fp32" else self.quant
        parts = (self.spec.name, self.variant, self.format.name, quant, self.target)
        return "-".join(part.replace("-", "_") for part in parts if part)

    @property
    def lossy(self) -> bool:
        """Whether the case's mode changes numbers, and its spec can tell by how much."""
        return self.quant != "fp32" and self.spec.unquantised is not None

    @property
    def narrow(self) -> bool:
        """Whether results are rounded from a wider accumulator."""
        return self.spec.out is None and self.format.bits < accumulator(self.format).bits

    @property
    def marks(self) -> tuple[str, ...]:
        """Marker names: select with ``-m 'rms_norm and aarch64_neon'``."""
        parts = (self.spec.name, self.spec.kind, self.variant, self.format.name, self.quant, self.target)
        return tuple(re.sub(r"\W", "_", part) for part in parts if part)


@dataclass(frozen=True)
class Example:
    """One input, reproducible from its text: sizes, kind of values, layout, generator seed."""

    dims: Mapping[str, int]
    values: str = "normal"
    layout: str = "contiguous"
    seed: int = 0

    def suffix(self, spec: OpSpec) -> str:
        """``B2S7D33``: the sizes that identify it."""
        return "".join(f"{name}{size}" for name, size in spec.shapes.named(self.dims).items())

    @property
    def code(self) -> str:
        """Seed, layout and kind of values in one hexadecimal number: what ``--seed`` takes to replay an example."""
        return f"{self.seed << 16 | layouts.NAMES.index(self.layout) << 8 | values.NAMES.index(self.values):#x}"

    @classmethod
    def parse(cls, spec: OpSpec, suffix: str, code: int) -> Example:
        """The inverse of ``suffix`` and ``code``. Raises ``ValueError`` if the sizes are not the spec's."""
        dims = {name: int(size) for name, size in re.findall(r"([A-Za-z]+)(\d+)", suffix)}
        expected = {*spec.shapes.free, *(spec.shapes.static[0] if spec.shapes.static else ())}
        if set(dims) != expected:
            raise ValueError(f"shape of {spec.name}: {suffix!r} names {sorted(dims)}, expected {sorted(expected)}")
        layout, kind = layouts.NAMES[code >> 8 & 0xFF], values.NAMES[code & 0xFF]
        return cls(spec.shapes.complete(dims), kind, layout, code >> 16)


def materialise(spec: OpSpec, fmt: Format, example: Example) -> list[torch.Tensor]:
    """The operands of an example, rounded to their formats and laid out. The layout goes to data and fixed operands."""
    tensors: list[torch.Tensor] = []
    for operand, array in zip(spec.operands, _values(spec, example), strict=True):
        tensor = torch.from_numpy(np.array(array, order="C")).to((operand.format or fmt).torch)
        rearranged = operand.role != "weight" and not (operand.role == "fixed" and example.layout == "expanded")
        tensors.append(layouts.LAYOUTS[example.layout](tensor) if rearranged else tensor)
    return tensors


def _values(spec: OpSpec, example: Example) -> tuple[np.ndarray, ...]:
    """The numbers of an example, before rounding and layout."""
    rng = np.random.default_rng(example.seed)
    if example.values == values.INTEGERS:
        if spec.exact is None:
            raise ValueError(f"exact operands of {spec.name}: the spec has no exact mode")
        return spec.exact(rng, example.dims)
    if example.values == values.KNOWN:
        row = spec.known[example.seed]
        return tuple(
            _repeated(operand, array, row, example) for operand, array in zip(spec.operands, row.operands, strict=True)
        )
    chosen = example.seed % max(sum(operand.role == "data" for operand in spec.operands), 1)
    return tuple(_fill(operand, rng, example, i, chosen) for i, operand in enumerate(spec.operands))


def _repeated(operand: Operand, array: np.ndarray, row: Known, example: Example) -> np.ndarray:
    if row.repeat not in operand.axes:
        return array
    axis = operand.axes.index(row.repeat)
    return np.repeat(array, example.dims[row.repeat] // array.shape[axis], axis)


def known_examples(spec: OpSpec, layout: str) -> Iterator[Example]:
    """Every known input of a spec in one layout, once as it is and once repeated fivefold."""
    for index, row in enumerate(spec.known):
        dims: dict[str, int] = {**row.dims}
        for operand, array in zip(spec.operands, row.operands, strict=True):
            dims.update(zip(operand.axes, array.shape, strict=True))
        yield Example(dims, values.KNOWN, layout, index)
        if row.repeat:
            repeated = {**dims, row.repeat: 5 * dims[row.repeat]}
            yield Example(spec.shapes.complete(repeated), values.KNOWN, layout, index)


def _fill(operand: Operand, rng: np.random.Generator, example: Example, index: int, chosen: int) -> np.ndarray:
    shape = operand.shape(example.dims)
    if operand.fill is not None:
        return operand.fill(rng, shape, example.dims)
    kind = values.VALUES[example.values]
    if operand.role == "weight" or not (kind.everywhere or index == chosen):
        kind = values.VALUES["normal"]
    return kind.fill(rng, shape)


def arrays(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    """What the golden works on: float64 for floats, int64 for the rest."""
    return [t.to(torch.float64 if t.is_floating_point() else torch.int64).numpy() for t in tensors]
