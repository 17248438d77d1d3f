"""Parameters to what lies in memory for a weight buffer: the packing of a quantisation mode."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anvil import quant
from anvil.dtypes import TORCH_OF_MLIR
from anvil.errors import InputError
from anvil.runtime.plan import Buffer
from anvil.targets.base import Target

#: Makes the contents of a weight buffer out of its parameter.
Pack = Callable[[Buffer, torch.Tensor], torch.Tensor]


def packer(mode_name: str, target: Target) -> Pack:
    """How weights are packed for ``target`` in this quantisation mode."""
    mode = quant.get(mode_name)

    def pack(buffer: Buffer, weight: torch.Tensor) -> torch.Tensor:
        if buffer.layout == "plain":
            return weight.to(TORCH_OF_MLIR[buffer.dtype])
        layouts = {piece.layout: piece.name for piece in mode.tensors(weight.shape[0], weight.shape[1], target)}
        if buffer.layout not in layouts:
            raise InputError(
                f"packing weight {buffer.name}: layout={buffer.layout}, but quant={mode_name} on {target.name} "
                f"makes {sorted(layouts)}"
            )
        return mode.pack(mode.quantise(weight), target)[layouts[buffer.layout]]

    return pack
