"""q8_0: 32 weights share a scale d (f16); a weight is d code, its code an int8. GGUF's blocks of that name.

Kernels sum code x and multiply by d once per block, so the codes enter as exact integers. Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.bits import from_f16
from anvil.kernels.blocks import BlockFormat, Field, small_float
from anvil.quant.base import FileBlocks, Quantised
from anvil.quant.blob import as_dtype, block_mode, flattened, halves_to_bytes, padded_blocks

FORMAT = BlockFormat(
    name="q8_0",
    block=32,
    group=32,
    step=8,
    fields=(Field("codes", 8, 32), Field("scale", 16)),
    parameters=lambda at: from_f16(at.row("scale"), at.target),
    codes=lambda at, step: [at.row("codes", step * 8 + k) for k in range(8)],
    value=lambda codes, k, scale: small_float(codes[k]),
    scale=lambda scale: scale,
)


def quantise(weight: torch.Tensor) -> Quantised:
    """The weight of largest magnitude gets code 127 or -127; codes are rounded half to even and saturate."""
    blocks = padded_blocks(weight, FORMAT.block)
    scale = (blocks.abs().amax(dim=2, keepdim=True) / 127).half()
    codes = (blocks / scale.float()).nan_to_num_(0, 0, 0).round_().clamp_(-128, 127)
    return Quantised((weight.shape[0], weight.shape[1]), {"codes": codes.to(torch.int8), "scale": scale})


def dequantise(weight: Quantised) -> torch.Tensor:
    codes, scale = as_dtype(weight.parts, "codes", torch.int8), as_dtype(weight.parts, "scale", torch.float16)
    return flattened(codes.double() * scale.double(), weight.shape)


def from_file(blocks: torch.Tensor, shape: tuple[int, int]) -> Quantised:
    """Block bytes: d, then 32 codes."""
    scale, codes = blocks[..., :2].contiguous().view(torch.float16), blocks[..., 2:].contiguous().view(torch.int8)
    return Quantised(shape, {"codes": codes, "scale": scale})


def to_file(weight: Quantised) -> torch.Tensor:
    return torch.cat([halves_to_bytes(weight.parts["scale"]), as_dtype(weight.parts, "codes", torch.uint8)], dim=2)


MODE = block_mode("q8_0", FORMAT, quantise, dequantise, file=FileBlocks("Q8_0", 32, 34, from_file, to_file))
