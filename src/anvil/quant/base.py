"""What a quantisation mode is: numbers, how they are packed, and which kernels read them. One file per mode.

Three steps, each with its own test: ``quantise`` decides the integers and scales, ``pack`` lays them out for a target
without changing one, and the kernels compute with exactly what ``dequantise`` says they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch

from anvil.dtypes import itemsize
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
class Quantised:
    """A weight [N, K] as integers, scales, zero points: ``parts`` by name, each [N, blocks, elements per block].

    They are what a file of the format holds, before any layout of a target. The last block may be padded.
    """

    shape: tuple[int, int]
    parts: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class FileBlocks:
    """How a GGUF file stores weights of a mode: ``nbytes`` bytes for ``size`` inputs of one output.

    ``read(blocks uint8 [N, blocks, nbytes], (N, K))`` and its inverse ``write`` move bits and round nothing.
    """

    kind: str  # name of the tensor type, as the gguf package spells it
    size: int
    nbytes: int
    read: Callable[[torch.Tensor, tuple[int, int]], Quantised]
    write: Callable[[Quantised], torch.Tensor]


@dataclass(frozen=True)
class Activations:
    """How a mode rounds what it multiplies weights with.

    ``build(target)`` takes x [M, K] and writes tensors [M, ...] which the matrix kernel takes in place of x;
    ``pieces(K)`` gives the element type of each and its sizes behind the first. ``rounded(x)`` says what they stand
    for: f64 of the shape of x, exact.
    """

    build: Callable[[Target], Kernel]
    pieces: Callable[[int], tuple[tuple[str, tuple[int, ...]], ...]]
    rounded: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class QuantMode:
    """A quantisation mode. Weights are [N, K]: N outputs (or vocabulary entries), K inputs.

    ``tensors(N, K, target)`` says what a packed weight consists of, in the order in which kernels take it; ``pack`` of
    a :class:`Quantised` makes these tensors by name and ``unpack(packed, (N, K), target)`` is its inverse.
    ``quantise`` takes a weight of any float type; ``dequantise`` gives f64 [N, K], exact: what goldens compute with.
    ``build_linear(target, has_bias)`` takes x [M, K], the packed tensors, (bias [N],) and y [M, N];
    ``build_embedding(target)`` takes ids [M], the packed tensors and y [M, K]. ``file`` is set where GGUF files hold
    such weights, ``activations`` where x is rounded too.
    """

    name: str
    quantise: Callable[[torch.Tensor], Quantised]
    dequantise: Callable[[Quantised], torch.Tensor]
    tensors: Callable[[int, int, Target], tuple[PackedTensor, ...]]
    pack: Callable[[Quantised, Target], dict[str, torch.Tensor]]
    unpack: Callable[[Mapping[str, torch.Tensor], tuple[int, int], Target], Quantised]
    build_linear: Callable[[Target, bool], Kernel]
    build_embedding: Callable[[Target], Kernel]
    file: FileBlocks | None = None
    activations: Activations | None = None
    table: str = ""  # the mode of embeddings and output projections of a model in this mode, if another one
    tied: str = ""  # of a matrix that is both of these

    def nbytes(self, outputs: int, inputs: int, target: Target) -> int:
        """Bytes of a packed weight [N, K]."""
        return sum(prod(piece.shape) * itemsize(piece.dtype) for piece in self.tensors(outputs, inputs, target))
