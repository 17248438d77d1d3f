"""w8a8: int8 weights with one f32 scale per output, int8 activations with one f32 scale per row, sums in int32.

A weight is scale code, as in w8. Activations are rounded while the model runs (:mod:`anvil.kernels.quantise_rows`):
each row, which is one token, by its own largest magnitude, so no token changes another. Sums of products are exact.

Embeddings and the output projection are in w8: nothing is gained by rounding the activations of one more layer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import torch

from anvil.errors import UnsupportedError
from anvil.kernels import linear_dots, quantise_rows
from anvil.kernels.base import Kernel
from anvil.kernels.blocks import At, BlockFormat, Field, small_float
from anvil.kernels.dots import dot_of
from anvil.kernels.dsl import Val, cast, shift_right
from anvil.quant import w8
from anvil.quant.base import Activations, PackedTensor, Quantised, QuantMode
from anvil.quant.blob import as_dtype, block_mode
from anvil.targets.base import Target

_BLOCK = quantise_rows.BLOCK
_STEP = 8  # inputs decoded at a time for an embedding
_MOST_INPUTS = (2**31 - 1) // (127 * 127)  # more could overflow a sum


def _format(target: Target) -> BlockFormat:
    """Codes in words of as many inputs as the target's dot takes of one output."""
    word = dot_of(target).word
    per_word = word // 8

    def codes(at: At, step: Val) -> list[Val]:
        rows = _STEP // per_word
        return [at.row("codes", step * rows + row) for row in range(rows)]

    def value(words: list[Val], k: int, scale: Val) -> Val:
        return small_float(cast(shift_right(words[k // per_word], 8 * (k % per_word)), "i8"))

    return BlockFormat(
        name="w8a8",
        block=_BLOCK,
        group=_BLOCK,
        step=_STEP,
        head=(Field("scale", 32), Field("sums", 32)),
        fields=(Field("codes", 8, _BLOCK, word=word),),
        parameters=lambda at: at.row("scale").bits("f32"),
        codes=codes,
        value=value,
        scale=lambda scale: scale,
    )


_STORAGE: QuantMode = block_mode("w8a8", _format, w8.quantise, w8.dequantise, table="w8")


def _check(inputs: int) -> None:
    if inputs > _MOST_INPUTS:
        raise UnsupportedError(
            f"packing a weight for quant='w8a8': inputs={inputs}; sums of at most {_MOST_INPUTS} products are certain "
            "to fit 32 bits; use w8"
        )


def _tensors(outputs: int, inputs: int, target: Target) -> tuple[PackedTensor, ...]:
    if isinstance(inputs, int):  # a size known at run time only is checked when the weight is packed
        _check(inputs)
    return _STORAGE.tensors(outputs, inputs, target)


def _pack(weight: Quantised, target: Target) -> dict[str, torch.Tensor]:
    _check(weight.shape[1])
    codes = as_dtype(weight.parts, "codes", torch.int8)
    sums = codes.flatten(1).sum(dim=1, dtype=torch.int32).reshape(-1, 1, 1)
    return _STORAGE.pack(replace(weight, parts={**weight.parts, "sums": sums}), target)


def _unpack(packed: Mapping[str, torch.Tensor], shape: tuple[int, int], target: Target) -> Quantised:
    whole = _STORAGE.unpack(packed, shape, target)
    return replace(whole, parts={name: part for name, part in whole.parts.items() if name != "sums"})


@functools.cache
def _build_linear(target: Target, has_bias: bool = False) -> Kernel:
    return linear_dots.build_for(target, _format(target), has_bias)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """What the kernels take f32 rows for: codes times scale, exact in f64."""
    scale = x.abs().amax(dim=-1, keepdim=True) / 127 if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)
    codes = (x / scale).nan_to_num_(0, 127, -127).round_().clamp_(-127, 127)
    return codes.double() * torch.where(scale.isfinite(), scale, torch.nan).double()


ACTIVATIONS = Activations(
    build=lambda target: quantise_rows.build(target, dot_of(target).offset),
    pieces=lambda inputs: (("i8", (-(-inputs // _BLOCK) * _BLOCK,)), ("f32", ())),
    rounded=_rounded,
)
MODE = replace(
    _STORAGE, tensors=_tensors, pack=_pack, unpack=_unpack, build_linear=_build_linear, activations=ACTIVATIONS
)
