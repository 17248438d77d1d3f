"""w8: int8 weights with one f32 scale per output: a weight is scale code.

Kernels sum code x over 32 inputs and multiply by the scale, so the codes enter as exact integers. Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.blocks import BlockFormat, Field, small_float
from anvil.quant.base import Quantised
from anvil.quant.blob import as_dtype, block_mode, flattened, padded_blocks

FORMAT = BlockFormat(
    name="w8",
    block=32,
    group=32,
    step=8,
    head=(Field("scale", 32),),
    fields=(Field("codes", 8, 32),),
    parameters=lambda at: at.row("scale").bits("f32"),
    codes=lambda at, step: [at.row("codes", step * 8 + k) for k in range(8)],
    value=lambda codes, k, scale: small_float(codes[k]),
    scale=lambda scale: scale,
)


def quantise(weight: torch.Tensor) -> Quantised:
    """The largest magnitude of an output gets code 127 or -127; codes are rounded half to even.

    The quotient w / scale is formed in f32, with the scale as stored.
    """
    blocks = padded_blocks(weight, FORMAT.block)
    largest = blocks.abs().flatten(1).amax(dim=1) if blocks.shape[1] else blocks.new_zeros(len(blocks))
    scale = largest.reshape(-1, 1, 1) / 127
    codes = (blocks / scale).nan_to_num_(0, 0, 0).round_().clamp_(-127, 127)
    return Quantised((weight.shape[0], weight.shape[1]), {"codes": codes.to(torch.int8), "scale": scale})


def dequantise(weight: Quantised) -> torch.Tensor:
    codes, scale = as_dtype(weight.parts, "codes", torch.int8), as_dtype(weight.parts, "scale", torch.float32)
    return flattened(codes.double() * scale.double(), weight.shape)


MODE = block_mode("w8", FORMAT, quantise, dequantise)
