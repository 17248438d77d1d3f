"""q6_k: blocks of 256 weights in 16 groups of 16. A weight is (d s) (code - 32): code 0 .. 63, s an int8 of the group,
d f16 of the block. GGUF's blocks of the name Q6_K.

Kernels sum (code - 32) x over a group and multiply by d s, which is exact in f32, so the codes enter as exact integers.
Activations are f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from anvil.kernels.bits import from_f16, reinterpret, signed_bits, top_bits
from anvil.kernels.blocks import At, BlockFormat, Field, Swift, small_float
from anvil.kernels.dsl import Val, shift_right
from anvil.quant.base import FileBlocks, Quantised
from anvil.quant.blob import as_dtype, block_mode, flattened, half_at_least, halves_to_bytes, padded_blocks
from anvil.targets.base import Target


def _codes(at: At, step: Val) -> list[Val]:
    """Of a group, four words per output with a code - 32 in each byte; :func:`_word` says which input is where."""
    low, pairs = [at.row("low", at.sub * 2), at.row("low", at.sub * 2 + 1)], at.row("pairs", at.sub)
    nibbles = [(word if odd == 0 else shift_right(word, 4)) & 0x0F0F0F0F for word in low for odd in (0, 1)]
    above = [moved & 0x30303030 for moved in (pairs << 4, pairs << 2, pairs, shift_right(pairs, 2))]
    whole = [reinterpret(own | high, "i8") for own, high in zip(nibbles, above, strict=True)]
    return [reinterpret(code - 32, "i32") for code in whole]


def _word(k: int) -> tuple[int, int]:
    """Word and byte that hold the code of input ``k``: even and odd nibbles of a word of ``low`` come apart."""
    return k // 8 * 2 + k % 2, k % 8 // 2


def _value(codes: list[Val], k: int, scale: Val) -> Val:
    word, byte = _word(k)
    return small_float(signed_bits(codes[word], 8 * byte, 8))


def _swift_value(codes: list[Val], k: int, scale: Val) -> Val:
    word, byte = _word(k)
    return small_float(top_bits(codes[word], 8 * byte, 8))  # times 2^24


#: ``pairs`` holds the high bits of a group in this order: the ones of each byte of the four words in a byte of its own.
_ORDER = torch.tensor([16 * group + k for group in range(16) for k in sorted(range(16), key=lambda k: _word(k)[::-1])])
_BACK = _ORDER.argsort()

FORMAT = BlockFormat(
    name="q6_k",
    block=256,
    group=16,
    step=16,
    fields=(Field("scale", 16), Field("scales", 8, 16), Field("low", 4, 256), Field("pairs", 2, 256)),
    parameters=lambda at: from_f16(at.row("scale"), at.target) * small_float(at.row("scales", at.sub)),
    codes=_codes,
    value=_value,
    scale=lambda scale: scale,
    swift=Swift(codes=_codes, value=_swift_value, scale=lambda scale: scale * 2.0**-24),
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


_STORAGE = block_mode("q6_k", FORMAT, quantise, dequantise, file=FileBlocks("Q6_K", 256, 210, from_file, to_file))


def _pack(weight: Quantised, target: Target) -> dict[str, torch.Tensor]:
    pairs = weight.parts["high"][..., _ORDER]
    return _STORAGE.pack(replace(weight, parts={**weight.parts, "pairs": pairs}), target)


def _unpack(packed: Mapping[str, torch.Tensor], shape: tuple[int, int], target: Target) -> Quantised:
    parts = dict(_STORAGE.unpack(packed, shape, target).parts)
    high = parts.pop("pairs")[..., _BACK]
    return Quantised(shape, {**parts, "high": high})


MODE = replace(_STORAGE, pack=_pack, unpack=_unpack)
