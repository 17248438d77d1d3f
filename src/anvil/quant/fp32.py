"""fp32: weights as they are, packed in panels (:mod:`anvil.kernels.panel`)."""

from __future__ import annotations

import torch

from anvil.kernels import embedding_panel, linear
from anvil.kernels.panel import panel_of
from anvil.quant.base import PackedTensor, QuantMode
from anvil.targets.base import Target


def _tensors(outputs: int, inputs: int, target: Target) -> tuple[PackedTensor, ...]:
    panel = panel_of(target)
    return (PackedTensor("w", "f32", (panel.count(outputs), inputs, panel.width), panel.layout),)


def _pack(weight: torch.Tensor, target: Target) -> dict[str, torch.Tensor]:
    """w [N, K] of any float type -> [P, K, width] f32."""
    width = panel_of(target).width
    (outputs, inputs), whole = weight.shape, weight.shape[0] // width
    packed = torch.empty(_tensors(outputs, inputs, target)[0].shape)
    packed[:whole].copy_(weight[: whole * width].reshape(whole, width, inputs).transpose(1, 2))
    if whole * width < outputs:
        rest = weight[whole * width :]
        packed[whole, :, : len(rest)].copy_(rest.t())
        packed[whole, :, len(rest) :] = 0
    return {"w": packed}


def _unpack(packed: dict[str, torch.Tensor], outputs: int, target: Target) -> torch.Tensor:
    panels, inputs, width = packed["w"].shape
    return packed["w"].transpose(1, 2).reshape(panels * width, inputs)[:outputs].contiguous()


MODE = QuantMode(
    name="fp32",
    tensors=_tensors,
    pack=_pack,
    unpack=_unpack,
    build_linear=linear.build,
    build_embedding=embedding_panel.build,
)
