"""q4_k: blocks of 256 weights in 8 groups of 32. A weight is (d s) code - (e m): code 0 .. 15, each group's scale s and
minimum m 0 .. 63, d and e f16 of the block. GGUF's blocks of the name Q4_K.

d s and e m are exact in f32; a weight is then rounded once, by a fused multiply-subtract. Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.bits import bits_in_place, from_f16, widen
from anvil.kernels.blocks import At, BlockFormat, Field, small_float
from anvil.kernels.dsl import Val, fma
from anvil.quant.base import FileBlocks, Quantised
from anvil.quant.blob import as_dtype, block_mode, flattened, half_at_least, halves_to_bytes, padded_blocks

_PARTS = ("scale", "minima_scale")


def _parameters(at: At) -> tuple[Val, Val]:
    scale, minimum = (small_float(widen(at.row(name, at.sub), "i32")) for name in ("scales", "minima"))
    d, e = (from_f16(at.row(name), at.target) for name in _PARTS)
    return d * scale, -(e * minimum)


def _value(word: Val, k: int, own: tuple[Val, Val]) -> Val:
    code, shift = bits_in_place(word, 4 * k, 4)
    return fma(small_float(code), own[0] * 2.0**-shift if shift else own[0], own[1])  # exact: far from denormal


FORMAT = BlockFormat(
    name="q4_k",
    block=256,
    group=32,
    step=8,
    fields=(
        Field("scale", 16),
        Field("minima_scale", 16),
        Field("scales", 8, 8),
        Field("minima", 8, 8),
        Field("codes", 4, 256),
    ),
    parameters=_parameters,
    codes=lambda at, step: at.row("codes", at.sub * 4 + step),
    value=_value,
)


def quantise(weight: torch.Tensor) -> Quantised:
    """Each group's range, stretched to hold 0, is cut into 15 steps; its scale and minimum into 63 of the block's."""
    blocks = padded_blocks(weight, FORMAT.block)
    groups = blocks.reshape(*blocks.shape[:2], 8, 32)
    low, high = groups.amin(dim=3).clamp_(max=0), groups.amax(dim=3).clamp_(min=0)
    scale, scales = _shared((high - low) / 15)
    minima_scale, minima = _shared(-low)
    steps, offsets = (scale.float() * scales)[..., None], (minima_scale.float() * minima)[..., None]
    codes = ((groups + offsets) / steps).nan_to_num_(0, 0, 0).round_().clamp_(0, 15)
    parts = {
        "scale": scale,
        "minima_scale": minima_scale,
        "scales": scales.to(torch.uint8),
        "minima": minima.to(torch.uint8),
        "codes": codes.reshape(blocks.shape).to(torch.uint8),
    }
    return Quantised((weight.shape[0], weight.shape[1]), parts)


def _shared(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of a block's groups as an f16 factor times integers 0 .. 63."""
    factor = half_at_least(values.amax(dim=2, keepdim=True) / 63)
    return factor, (values / factor.float()).nan_to_num_(0, 0, 0).round_().clamp_(0, 63)


def dequantise(weight: Quantised) -> torch.Tensor:
    d, e = (as_dtype(weight.parts, name, torch.float16).double() for name in _PARTS)
    codes = weight.parts["codes"].double().unflatten(2, (8, 32))
    scaled = codes * (d * weight.parts["scales"].double())[..., None]
    values = scaled - (e * weight.parts["minima"].double())[..., None]
    return flattened(values.flatten(2), weight.shape)


def from_file(blocks: torch.Tensor, shape: tuple[int, int]) -> Quantised:
    """Block bytes: d, e; 12 bytes of 6-bit numbers; 4 x 32 bytes, low nibbles one group, high nibbles the next."""
    packed, pairs = blocks[..., 4:16], blocks[..., 16:].unflatten(2, (4, 32))
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    parts = {
        "scale": blocks[..., 0:2].contiguous().view(torch.float16),
        "minima_scale": blocks[..., 2:4].contiguous().view(torch.float16),
        "scales": torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=2),
        "minima": torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=2),
        "codes": torch.stack([pairs & 15, pairs >> 4], dim=3).flatten(2),
    }
    return Quantised(shape, parts)


def to_file(weight: Quantised) -> torch.Tensor:
    scales, minima = weight.parts["scales"], weight.parts["minima"]
    codes = weight.parts["codes"].unflatten(2, (4, 2, 32))
    pieces = [
        *(halves_to_bytes(weight.parts[name]) for name in _PARTS),
        scales[..., :4] | (scales[..., 4:] >> 4 << 6),
        minima[..., :4] | (minima[..., 4:] >> 4 << 6),
        (scales[..., 4:] & 15) | (minima[..., 4:] << 4),
        (codes[..., 0, :] | (codes[..., 1, :] << 4)).flatten(2),
    ]
    return torch.cat(pieces, dim=2)


FILE = FileBlocks("Q4_K", 256, 144, from_file, to_file)
MODE = block_mode("q4_k", FORMAT, quantise, dequantise, file=FILE, tied="q8_0")
