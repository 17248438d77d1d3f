"""fp32: weights as they are, packed in panels (:mod:`anvil.kernels.panel`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anvil.kernels import embedding_panel, linear
from anvil.kernels.panel import panel_of
from anvil.quant.base import PackedTensor, Quantised, QuantMode
from anvil.targets.base import Target


def _tensors(outputs: int, inputs: int, target: Target) -> tuple[PackedTensor, ...]:
    panel = panel_of(target)
    return (PackedTensor("w", "f32", (panel.count(outputs), inputs, panel.width), panel.layout),)


def quantise(weight: torch.Tensor) -> Quantised:
    """w [N, K] of any float type, widened to f32 while it is packed."""
    return Quantised((weight.shape[0], weight.shape[1]), {"w": weight})


def dequantise(weight: Quantised) -> torch.Tensor:
    return weight.parts["w"].double()


def _pack(weight: Quantised, target: Target) -> dict[str, torch.Tensor]:
    """w [N, K] of any float type -> [P, K, width] f32."""
    w, width = weight.parts["w"], panel_of(target).width
    (outputs, inputs), whole = w.shape, w.shape[0] // width
    packed = torch.empty(_tensors(outputs, inputs, target)[0].shape)
    packed[:whole].copy_(w[: whole * width].reshape(whole, width, inputs).transpose(1, 2))
    if whole * width < outputs:
        rest = w[whole * width :]
        packed[whole, :, : len(rest)].copy_(rest.t())
        packed[whole, :, len(rest) :] = 0
    return {"w": packed}


def _unpack(packed: Mapping[str, torch.Tensor], shape: tuple[int, int], target: Target) -> Quantised:
    panels, inputs, width = packed["w"].shape
    w = packed["w"].transpose(1, 2).reshape(panels * width, inputs)[: shape[0]].contiguous()
    return Quantised(shape, {"w": w})


MODE = QuantMode(
    name="fp32",
    quantise=quantise,
    dequantise=dequantise,
    tensors=_tensors,
    pack=_pack,
    unpack=_unpack,
    build_linear=linear.build,
    build_embedding=embedding_panel.build,
)
