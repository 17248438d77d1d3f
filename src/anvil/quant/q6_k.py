"""q6_k: blocks of 256 weights in 16 groups of 16. A weight is (d s) (code - 32): code 0 .. 63, s an int8 of the group,
d f16 of the block. GGUF's blocks of the name Q6_K.

Kernels sum (code - 32) x over a group and multiply by d s, which is exact in f32, so the codes enter as exact integers.
Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.bits import from_f16, unsigned_bits
from anvil.kernels.blocks import At, BlockFormat, Field, small_float
from anvil.kernels.dsl import Val
from anvil.quant.base import FileBlocks, Quantised
from anvil.quant.blob import as_dtype, block_mode, flattened, half_at_least, halves_to_bytes, padded_blocks


def _codes(at: At, step: Val) -> tuple[Val, Val, Val]:
    return at.row("low", at.sub * 2), at.row("low", at.sub * 2 + 1), at.row("high", at.sub)


def _value(codes: tuple[Val, Val, Val], k: int, scale: Val) -> Val:
    low, high = unsigned_bits(codes[k // 8], 4 * (k % 8), 4), codes[2]
    above = unsigned_bits(high, 2 * k - 4, 6) & 0x30 if k > 1 else (high << (4 - 2 * k)) & 0x30
    return small_float((low | above) - 32)


FORMAT = BlockFormat(
    name="q6_k",
    block=256,
    group=16,
    step=16,
    fields=(Field("scale", 16), Field("scales", 8, 16), Field("low", 4, 256), Field("high", 2, 256)),
    parameters=lambda at: from_f16(at.row("scale"), at.target) * small_float(at.row("scales", at.sub)),
    codes=_codes,
    value=_value,
    scale=lambda scale: scale,
)


def quantise(weight: torch.Tensor) -> Quantised:
    """The weight of largest magnitude of a group gets code 1 or 63 if it is the block's largest; ties go to even."""
    blocks = padded_blocks(weight, FORMAT.block)
    groups = blocks.reshape(*blocks.shape[:2], 16, 16)
    wanted = groups.abs().amax(dim=3) / 31
    scale = half_at_least(wanted.amax(dim=2, keepdim=True) / 127)
    scales = (wanted / scale.float()).nan_to_num_(0, 0, 0).round_().clamp_(0, 127)
    steps = (scale.float() * scales)[..., None]
    codes = (groups / steps).nan_to_num_(0, 0, 0).round_().clamp_(-32, 31) + 32
    codes = codes.reshape(blocks.shape).to(torch.uint8)
    parts = {"scale": scale, "scales": scales.to(torch.int8), "low": codes & 15, "high": codes >> 4}
    return Quantised((weight.shape[0], weight.shape[1]), parts)


def dequantise(weight: Quantised) -> torch.Tensor:
    scale = as_dtype(weight.parts, "scale", torch.float16).double()
    steps = scale * as_dtype(weight.parts, "scales", torch.int8).double()
    codes = (weight.parts["low"] | (weight.parts["high"] << 4)).double() - 32
    return flattened((codes.unflatten(2, (16, 16)) * steps[..., None]).flatten(2), weight.shape)


def from_file(blocks: torch.Tensor, shape: tuple[int, int]) -> Quantised:
    """Block bytes: 128 of low nibbles, 64 of high pairs of bits, 16 scales, d. Each half of 128 weights has 64 and 32
    bytes; byte l of them holds parts of weights l, l + 32, l + 64 and l + 96."""
    low, high = blocks[..., :128].unflatten(2, (2, 2, 32)), blocks[..., 128:192].unflatten(2, (2, 32))
    parts = {
        "scale": blocks[..., 208:].contiguous().view(torch.float16),
        "scales": blocks[..., 192:208].contiguous().view(torch.int8),
        "low": torch.stack([low & 15, low >> 4], dim=3).flatten(2),
        "high": torch.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=3).flatten(2),
    }
    return Quantised(shape, parts)


def to_file(weight: Quantised) -> torch.Tensor:
    low, high = weight.parts["low"].unflatten(2, (2, 2, 2, 32)), weight.parts["high"].unflatten(2, (2, 4, 32))
    pairs = high[..., 0, :] | (high[..., 1, :] << 2) | (high[..., 2, :] << 4) | (high[..., 3, :] << 6)
    pieces = [
        (low[..., 0, :, :] | (low[..., 1, :, :] << 4)).flatten(2),
        pairs.flatten(2),
        as_dtype(weight.parts, "scales", torch.uint8),
        halves_to_bytes(weight.parts["scale"]),
    ]
    return torch.cat(pieces, dim=2)


MODE = block_mode("q6_k", FORMAT, quantise, dequantise, file=FileBlocks("Q6_K", 256, 210, from_file, to_file))
