"""Weights in a 16-bit floating-point type: one element per input and output, nothing shared."""

from __future__ import annotations

import torch

from anvil.kernels.bits import from_bf16, from_f16
from anvil.kernels.blocks import At, BlockFormat, Field
from anvil.kernels.dsl import Val
from anvil.quant.base import FileBlocks, Quantised, QuantMode
from anvil.quant.blob import as_dtype, block_mode


def half_mode(name: str, dtype: torch.dtype) -> QuantMode:
    """The mode that rounds every weight to ``dtype``, to nearest even."""

    def weight(at: At, step: Val) -> Val:
        bits = at.row("codes")
        return from_bf16(bits) if dtype == torch.bfloat16 else from_f16(bits, at.target)

    format_ = BlockFormat(
        name=name,
        block=1,
        group=1,
        step=1,
        fields=(Field("codes", 16),),
        parameters=lambda at: (),
        codes=weight,
        value=lambda codes, k, parameters: codes,
    )

    def quantise(w: torch.Tensor) -> Quantised:
        return Quantised((w.shape[0], w.shape[1]), {"codes": w.to(dtype).unsqueeze(2)})

    def dequantise(w: Quantised) -> torch.Tensor:
        return as_dtype(w.parts, "codes", dtype).squeeze(2).double()

    def from_file(blocks: torch.Tensor, shape: tuple[int, int]) -> Quantised:
        return Quantised(shape, {"codes": blocks.contiguous().view(dtype)})

    def to_file(w: Quantised) -> torch.Tensor:
        return as_dtype(w.parts, "codes", dtype).contiguous().view(torch.uint8)

    kind = "BF16" if dtype == torch.bfloat16 else "F16"
    return block_mode(name, format_, quantise, dequantise, file=FileBlocks(kind, 1, 2, from_file, to_file))
