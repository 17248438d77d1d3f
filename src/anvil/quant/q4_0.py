"""q4_0: 32 weights share a scale d (f16); a weight is d (code - 8), its code 0 .. 15. GGUF's blocks of that name.

Kernels get the code minus 8 as a two's complement nibble (one bit is flipped, nothing is rounded), sum (code - 8) x and
multiply by d once per block, so the codes enter as exact integers. Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.bits import from_f16, signed_bits
from anvil.kernels.blocks import BlockFormat, Field, small_float
from anvil.kernels.nibbles import signed_nibbles
from anvil.quant.base import FileBlocks, Quantised
from anvil.quant.blob import (
    as_dtype,
    block_mode,
    flattened,
    halves_to_bytes,
    nibbles_from_file,
    nibbles_to_file,
    padded_blocks,
)

FORMAT = BlockFormat(
    name="q4_0",
    block=32,
    group=32,
    step=8,
    fields=(Field("codes", 4, 32), Field("scale", 16)),
    parameters=lambda at: from_f16(at.row("scale"), at.target),
    codes=lambda at, step: at.row("codes", step),
    value=lambda word, k, scale: small_float(signed_bits(word, 4 * k, 4)),
    scale=lambda scale: scale,
    swift=signed_nibbles(lambda at, step: at.row("codes", step)),
)


def quantise(weight: torch.Tensor) -> Quantised:
    """d maps the weight of largest magnitude to code 0; codes are rounded half to even and saturate."""
    blocks = padded_blocks(weight, FORMAT.block)
    peak = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))
    scale = (peak / -8).half()
    codes = (blocks / scale.float()).nan_to_num_(0, 0, 0).round_().clamp_(-8, 7)
    return Quantised(
        (weight.shape[0], weight.shape[1]), {"codes": (codes.to(torch.int8) & 15).to(torch.uint8), "scale": scale}
    )


def dequantise(weight: Quantised) -> torch.Tensor:
    signed = ((weight.parts["codes"].to(torch.int8) ^ 8) - 8).double()
    return flattened(signed * as_dtype(weight.parts, "scale", torch.float16).double(), weight.shape)


def from_file(blocks: torch.Tensor, shape: tuple[int, int]) -> Quantised:
    """Block bytes: d, then 16 pairs of codes."""
    scale = blocks[..., :2].contiguous().view(torch.float16)
    return Quantised(shape, {"codes": nibbles_from_file(blocks[..., 2:]) ^ 8, "scale": scale})


def to_file(weight: Quantised) -> torch.Tensor:
    return torch.cat([halves_to_bytes(weight.parts["scale"]), nibbles_to_file(weight.parts["codes"] ^ 8)], dim=2)


FILE = FileBlocks("Q4_0", 32, 18, from_file, to_file)
MODE = block_mode("q4_0", FORMAT, quantise, dequantise, file=FILE, tied="q8_0")
