"""Parameters to what lies in memory for a weight buffer: the packing of a quantisation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from anvil import quant
from anvil.dtypes import TORCH_OF_MLIR
from anvil.errors import InputError
from anvil.quant import Choice, QuantMode, Stored, WeightRow
from anvil.runtime.memory import as_bytes
from anvil.runtime.plan import Buffer
from anvil.targets.base import Target

#: Makes the contents of a weight buffer out of its parameter; given the buffer, the parameter's name and its value.
Pack = Callable[[Buffer, str, torch.Tensor], torch.Tensor]


class Packer:
    """How weights are packed for ``target``; ``stored`` has those that a file holds quantised already.

    ``rows`` says what became of every parameter packed so far. Errors against the originals take a pass over every
    weight, so they are measured only with ``measure``; NaN stands for "not measured".
    """

    def __init__(
        self, name: str, target: Target, *, stored: Mapping[str, Stored] | None = None, measure: bool = False
    ) -> None:
        self._choice: Choice = quant.choose(name, stored)
        self._target = target
        self._measure = measure
        self.rows: dict[tuple[str, str], WeightRow] = {}

    def __call__(self, buffer: Buffer, parameter: str, weight: torch.Tensor) -> torch.Tensor:
        """Raises :class:`InputError` for a layout that no mode has on the target."""
        if buffer.layout == "plain":
            plain = weight.to(TORCH_OF_MLIR[buffer.dtype])
            self._note(buffer, parameter, weight, buffer.dtype, plain, lambda: plain.double(), stored=False)
            return plain
        mode, piece = self._of_layout(buffer, weight)
        numbers = self._choice.quantised(parameter, mode, weight)
        packed = mode.pack(numbers, self._target)[piece]
        stored = parameter in self._choice.stored and numbers is self._choice.stored[parameter].weight
        self._note(buffer, parameter, weight, mode.name, packed, lambda: mode.dequantise(numbers), stored=stored)
        return packed

    def _of_layout(self, buffer: Buffer, weight: torch.Tensor) -> tuple[QuantMode, str]:
        """The mode that has the buffer's layout, and the name of the tensor in it."""
        known = []
        for mode in quant.modes().values():
            for piece in mode.tensors(weight.shape[0], weight.shape[1], self._target):
                if piece.layout == buffer.layout:
                    return mode, piece.name
                known.append(piece.layout)
        raise InputError(
            f"packing weight {buffer.name}: layout={buffer.layout!r}; {self._target.name} has the layouts {known}"
        )

    def _note(
        self,
        buffer: Buffer,
        parameter: str,
        weight: torch.Tensor,
        mode: str,
        packed: torch.Tensor,
        exact: Callable[[], torch.Tensor],
        *,
        stored: bool,
    ) -> None:
        nbytes = as_bytes(packed).nbytes
        error = float("nan")
        if self._measure:
            square = float(weight.double().square().sum())
            error = float((exact() - weight.double()).square().sum()) / square if square else 0.0
        row = WeightRow(parameter, tuple(weight.shape), mode, buffer.layout, nbytes, stored, error)
        self.rows[parameter, buffer.layout] = row
