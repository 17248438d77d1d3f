"""q4_1: 32 weights share a scale d and a minimum m (f16); a weight is d code + m, its code 0 .. 15. GGUF's blocks.

Kernels round d code + m to f32 once (fused) and then multiply, so a weight whose two terms cancel is still exact to
one rounding; summing codes and x apart would not be. Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.bits import bits_in_place, from_f16
from anvil.kernels.blocks import At, BlockFormat, Field, small_float
from anvil.kernels.dsl import Val, fma
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


def _parameters(at: At) -> tuple[Val, Val]:
    return from_f16(at.row("scale"), at.target), from_f16(at.row("minimum"), at.target)


def _value(word: Val, k: int, parameters: tuple[Val, Val]) -> Val:
    scale, minimum = parameters
    code, shift = bits_in_place(word, 4 * k, 4)
    return fma(small_float(code), scale * 2.0**-shift if shift else scale, minimum)  # exact: f16 is far from denormal


FORMAT = BlockFormat(
    name="q4_1",
    block=32,
    group=32,
    step=8,
    fields=(Field("codes", 4, 32), Field("scale", 16), Field("minimum", 16)),
    parameters=_parameters,
    codes=lambda at, step: at.row("codes", step),
    value=_value,
)


def quantise(weight: torch.Tensor) -> Quantised:
    """m is the least weight, d a fifteenth of the range; codes are rounded half to even and saturate."""
    blocks = padded_blocks(weight, FORMAT.block)
    low, high = blocks.amin(dim=2, keepdim=True), blocks.amax(dim=2, keepdim=True)
    scale, minimum = ((high - low) / 15).half(), low.half()
    codes = ((blocks - minimum.float()) / scale.float()).nan_to_num_(0, 0, 0).round_().clamp_(0, 15)
    parts = {"codes": codes.to(torch.uint8), "scale": scale, "minimum": minimum}
    return Quantised((weight.shape[0], weight.shape[1]), parts)


def dequantise(weight: Quantised) -> torch.Tensor:
    scale, minimum = (as_dtype(weight.parts, name, torch.float16).double() for name in ("scale", "minimum"))
    return flattened(weight.parts["codes"].double() * scale + minimum, weight.shape)


def from_file(blocks: torch.Tensor, shape: tuple[int, int]) -> Quantised:
    """Block bytes: d, m, then 16 pairs of codes."""
    scale, minimum = (blocks[..., at : at + 2].contiguous().view(torch.float16) for at in (0, 2))
    return Quantised(shape, {"codes": nibbles_from_file(blocks[..., 4:]), "scale": scale, "minimum": minimum})


def to_file(weight: Quantised) -> torch.Tensor:
    halves = [halves_to_bytes(weight.parts[name]) for name in ("scale", "minimum")]
    return torch.cat([*halves, nibbles_to_file(weight.parts["codes"])], dim=2)


FILE = FileBlocks("Q4_1", 32, 20, from_file, to_file)
MODE = block_mode("q4_1", FORMAT, quantise, dequantise, file=FILE, tied="q8_0")
