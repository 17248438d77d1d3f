"""Which mode each matrix of a model is in, and what became of it.

The rule: matrices are in the asked mode. Where that one names another as its ``table``, embeddings and the output
projection are in that; where it names one as ``tied``, a matrix that is both of them is: int4 costs most there. Norm
weights, biases and everything else stay as they are. ``gguf`` asks for every matrix as the file holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from anvil.errors import InputError
from anvil.quant.base import Quantised, QuantMode

AS_STORED = "gguf"
Role = Literal["matrix", "table", "tied"]  # of a linear layer; embeddings or the output projection; both in one


@dataclass(frozen=True)
class Stored:
    """A weight as a file holds it: quantised already, in ``mode``; ``read()`` gives it."""

    mode: str
    read: Callable[[], Quantised]


@dataclass(frozen=True)
class Choice:
    """The modes for a model's matrices. ``stored`` has what a file holds of them, by parameter."""

    name: str
    modes: Mapping[str, QuantMode]
    stored: Mapping[str, Stored] = field(default_factory=dict)

    def mode(self, parameter: str, role: Role) -> QuantMode:
        """The mode of one matrix."""
        if self.name == AS_STORED:
            return self.modes[self.stored[parameter].mode if parameter in self.stored else "fp32"]
        asked = self.modes[self.name]
        other = {"matrix": "", "table": asked.table, "tied": asked.tied or asked.table}[role]
        return self.modes[other] if other else asked

    def quantised(self, parameter: str, mode: QuantMode, weight: torch.Tensor) -> Quantised:
        """``weight`` in ``mode``: exactly as the file holds it if it does, else rounded now."""
        stored = self.stored.get(parameter)
        return stored.read() if stored is not None and stored.mode == mode.name else mode.quantise(weight)


@dataclass(frozen=True)
class WeightRow:
    """One tensor of a compiled model. ``nmse``: mean squared error over the mean square of the original."""

    parameter: str
    shape: tuple[int, ...]
    mode: str
    layout: str
    nbytes: int
    as_stored: bool
    nmse: float


def checked(name: str, modes: Mapping[str, QuantMode], stored: Mapping[str, Stored]) -> Choice:
    """Raises :class:`InputError` for an unknown mode, or for ``gguf`` of a model that came from elsewhere."""
    if name != AS_STORED and name not in modes:
        known = [*modes, AS_STORED]
        raise InputError(f"choosing a quantisation mode: quant={name!r} is unknown; expected one of {known}")
    if name == AS_STORED and not stored:
        raise InputError(
            "choosing a quantisation mode: quant='gguf' runs quantised weights as their file holds them, and this "
            f"model has none; load a GGUF file with anvil.models, or choose one of {list(modes)}"
        )
    return Choice(name, modes, stored)
