"""Which sizes and values an overload is run on: a fixed sequence, the first one small, others for every overload."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from assay.overloads.fill import KINDS
from assay.overloads.program import Call, seen, stored_axes
from assay.overloads.spec import Overload
from assay.strategies.layouts import LAYOUTS

#: Nothing, one, and around one and two vectors of 16 elements.
SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 100)
_FIRST = (2, 3, 5, 4, 6)


@dataclass(frozen=True)
class Example:
    """One set of inputs for all calls of an overload, reproducible from its number."""

    number: int
    dims: tuple[tuple[str, int], ...]
    kind: str
    layout: str
    seed: int

    @property
    def threads(self) -> int:
        return 1 + self.number % 2

    def __str__(self) -> str:
        sizes = "".join(f"{name}{size}" for name, size in self.dims)
        return f"example {self.number}: {sizes or 'rank 0'}, {self.kind} values, {self.layout}"


def examples(overload: Overload, count: int, limit: int, base: int = 0) -> Iterator[Example]:
    """``count`` examples of at most ``limit`` elements per combination of all axes."""
    layouts = tuple(LAYOUTS)
    for number in range(count):
        seed = zlib.crc32(f"{overload.name} {number}".encode()) ^ base
        rng = np.random.default_rng(seed)
        dims = _first(overload) if number == 0 else _drawn(overload, rng, limit)
        kind = overload.kinds[number % len(overload.kinds)]
        layout = layouts[number // 2 % len(layouts)] if number % 2 else "contiguous"
        yield Example(number, tuple(dims.items()), kind, layout, seed)


def tensors(overload: Overload, call: Call, example: Example) -> list[torch.Tensor]:
    """What is handed to the compiled program for one call; the op sees :func:`arguments` of them."""
    position = zlib.crc32(call.form.title.encode())
    rng = np.random.default_rng((example.seed, position, zlib.crc32(call.dtype.encode())))
    found: list[torch.Tensor] = []
    for given in call.form.tensors:
        stored = stored_axes(call.form, given)
        fill = given.fill or KINDS[example.kind]
        found.append(fill(rng, stored.shape(dict(example.dims)), call.dtype_of(given)))
    return [laid_out(tensor, example.layout) for tensor in found]


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers in another layout; bool has no filler for gaps and stays."""
    return tensor if tensor.dtype == torch.bool else LAYOUTS[layout](tensor)


def arguments(call: Call, stored: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors as the op sees them."""
    return [seen(call.form, given, tensor) for given, tensor in zip(call.form.tensors, stored, strict=True)]


def _first(overload: Overload) -> dict[str, int]:
    """Small and all different: a failure is easiest to read here."""
    given = zip(overload.axes, _FIRST, strict=False)
    return {name: size if name not in overload.sizes else overload.sizes[name][0] for name, size in given}


def _drawn(overload: Overload, rng: np.random.Generator, limit: int) -> dict[str, int]:
    dims = {name: int(rng.choice(overload.sizes.get(name, SIZES))) for name in overload.axes}
    while prod(dims.values()) > limit:
        largest = max(dims, key=lambda name: dims[name])
        smaller = [size for size in overload.sizes.get(largest, SIZES) if size < dims[largest]]
        dims[largest] = max(smaller)
    return dims
