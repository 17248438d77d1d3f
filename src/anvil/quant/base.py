"""What a quantisation mode is: how weights are packed and which kernels read them. One file per mode holds ``MODE``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from anvil.kernels.base import Kernel
from anvil.targets.base import Target


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of a packed weight: the kernel parameter it is passed for, and its element type, shape and layout."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class QuantMode:
    """A quantisation mode. Weights are [N, K]: N outputs (or vocabulary entries), K inputs.

    ``tensors(N, K, target)`` says what a packed weight consists of (the weight itself, scales, ...), in the order in
    which the kernels of ``build_linear`` and ``build_embedding`` take them; ``pack(weight, target)`` makes them, by
    parameter name; ``unpack(packed, N, target)`` gives back f32 [N, K], the values the kernels compute with.
    ``build_linear(target, has_bias)`` takes x [M, K], the packed tensors, (bias [N],) and y [M, N];
    ``build_embedding(target)`` takes ids [M], the packed tensors and y [M, K].
    """

    name: str
    tensors: Callable[[int, int, Target], tuple[PackedTensor, ...]]
    pack: Callable[[torch.Tensor, Target], dict[str, torch.Tensor]]
    unpack: Callable[[dict[str, torch.Tensor], int, Target], torch.Tensor]
    build_linear: Callable[[Target, bool], Kernel]
    build_embedding: Callable[[Target], Kernel]
