"""int4 weights in groups of inputs that share an f16 scale, without a zero point and with one.

Without: a weight is scale code, code -8 .. 7. With: a weight is scale (code - zero), code and zero 0 .. 15; the zero
point is an integer, so a weight of 0 is exact. Kernels sum code x, or (code - zero) x, over 32 inputs and multiply by
the scale: what enters is an exact integer. Activations are f32.
"""

from __future__ import annotations

import torch

from anvil.kernels.bits import bits_in_place, from_f16, signed_bits, widen
from anvil.kernels.blocks import At, BlockFormat, Field, small_float
from anvil.kernels.dsl import Val, const, fma
from anvil.kernels.nibbles import signed_nibbles
from anvil.quant.base import Quantised, QuantMode
from anvil.quant.blob import as_dtype, block_mode, flattened, padded_blocks

_GROUP = 32  # inputs summed before the scale is applied
_LARGEST = torch.finfo(torch.float16).max


def _codes(at: At, step: Val) -> Val:
    return at.row("codes", at.sub * (_GROUP // 8) + step)


def symmetric(name: str, size: int) -> QuantMode:
    """Groups of ``size`` inputs without a zero point."""
    format_ = BlockFormat(
        name=name,
        block=size,
        group=_GROUP,
        step=8,
        fields=(Field("codes", 4, size), Field("scale", 16)),
        parameters=lambda at: from_f16(at.row("scale"), at.target),
        codes=_codes,
        value=lambda word, k, scale: small_float(signed_bits(word, 4 * k, 4)),
        scale=lambda scale: scale,
        swift=signed_nibbles(_codes),
    )

    def quantise(weight: torch.Tensor) -> Quantised:
        """The largest magnitude of a group gets code 7 or -7; codes are rounded half to even and saturate."""
        groups = padded_blocks(weight, size)
        scale = (groups.abs().amax(dim=2, keepdim=True) / 7).clamp_(max=_LARGEST).half()
        codes = (groups / scale.float()).nan_to_num_(0, 0, 0).round_().clamp_(-8, 7)
        parts = {"codes": (codes.to(torch.int8) & 15).to(torch.uint8), "scale": scale}
        return Quantised((weight.shape[0], weight.shape[1]), parts)

    def dequantise(weight: Quantised) -> torch.Tensor:
        signed = ((weight.parts["codes"].to(torch.int8) ^ 8) - 8).double()
        return flattened(signed * as_dtype(weight.parts, "scale", torch.float16).double(), weight.shape)

    return block_mode(name, format_, quantise, dequantise, tied="q8_0")


def with_zero_point(name: str, size: int) -> QuantMode:
    """Groups of ``size`` inputs with a zero point."""

    def parameters(at: At) -> tuple[Val, Val]:
        return from_f16(at.row("scale"), at.target), -small_float(widen(at.row("zero"), "i32"))

    def value(word: Val, k: int, own: tuple[Val, Val]) -> Val:
        """code - zero, an exact integer."""
        code, shift = bits_in_place(word, 4 * k, 4)
        number = small_float(code)
        return fma(number, const(2.0**-shift, number.type), own[1])

    format_ = BlockFormat(
        name=name,
        block=size,
        group=_GROUP,
        step=8,
        fields=(Field("codes", 4, size), Field("scale", 16), Field("zero", 8)),
        parameters=parameters,
        codes=_codes,
        value=value,
        scale=lambda own: own[0],
    )

    def quantise(weight: torch.Tensor) -> Quantised:
        """The range of a group, stretched to hold 0, is cut into 15 steps; rounding is half to even."""
        groups = padded_blocks(weight, size)
        low, high = groups.amin(dim=2, keepdim=True).clamp_(max=0), groups.amax(dim=2, keepdim=True).clamp_(min=0)
        scale = ((high - low) / 15).clamp_(max=_LARGEST).half()
        zero = (-low / scale.float()).nan_to_num_(0, 0, 0).round_().clamp_(0, 15)
        codes = ((groups / scale.float()).nan_to_num_(0, 0, 0).round_() + zero).clamp_(0, 15)
        parts = {"codes": codes.to(torch.uint8), "scale": scale, "zero": zero.to(torch.uint8)}
        return Quantised((weight.shape[0], weight.shape[1]), parts)

    def dequantise(weight: Quantised) -> torch.Tensor:
        scale = as_dtype(weight.parts, "scale", torch.float16).double()
        return flattened((weight.parts["codes"].double() - weight.parts["zero"].double()) * scale, weight.shape)

    return block_mode(name, format_, quantise, dequantise, tied="q8_0")
