"""What a compiled program accepts: named tensors with symbolic shapes, checked and solved for the run-time sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
import torch

from anvil.errors import InputError
from anvil.runtime.binding import compile_sizes
from anvil.runtime.plan import Size


@dataclass(frozen=True)
class Spec:
    """Logical shape (of ints and sizes) and type of one argument."""

    shape: tuple[Size, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Signature:
    """The arguments of a program by name, and the inclusive range of each symbolic size."""

    program: str
    specs: Mapping[str, Spec]
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def solve(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The value of every size. Raises :class:`InputError` naming the argument that does not fit, and how."""
        values: dict[str, int] = {}
        origin: dict[str, str] = {}
        for name, spec in self.specs.items():
            tensor = self._argument(name, spec, tensors)
            for dim, (want, got) in enumerate(zip(spec.shape, tensor.shape, strict=True)):
                if isinstance(want, sympy.Symbol) and want.name not in values:
                    values[want.name] = int(got)
                    origin[want.name] = f"{name}.shape[{dim}]"
        self._check_ranges(values, origin)
        for name, spec in self.specs.items():
            self._check_shape(name, spec, tensors[name], values)
        return values

    def _argument(self, name: str, spec: Spec, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        tensor = tensors.get(name)
        if tensor is None:
            raise InputError(f"running {self.program}: argument {name} is missing; it takes {list(self.specs)}")
        if tensor.dtype != spec.dtype or tensor.ndim != len(spec.shape):
            raise InputError(
                f"running {self.program}: {name} has dtype={tensor.dtype} rank={tensor.ndim}, "
                f"expected dtype={spec.dtype} rank={len(spec.shape)}; the program was compiled for that type"
            )
        return tensor

    def _check_ranges(self, values: Mapping[str, int], origin: Mapping[str, str]) -> None:
        for symbol, value in values.items():
            low, high = self.ranges.get(symbol, (0, None))
            if value < low or (high is not None and value > high):
                raise InputError(
                    f"running {self.program}: {origin[symbol]}={value} (size {symbol}), "
                    f"expected {low}..{'any' if high is None else high}"
                )

    def _check_shape(self, name: str, spec: Spec, tensor: torch.Tensor, values: Mapping[str, int]) -> None:
        want = tuple(compile_sizes(spec.shape, tuple(values))(*values.values()))
        if tuple(tensor.shape) != want:
            raise InputError(
                f"running {self.program}: {name} has shape={tuple(tensor.shape)}, expected {want} "
                f"from {tuple(map(str, spec.shape))} with {dict(values)}"
            )
