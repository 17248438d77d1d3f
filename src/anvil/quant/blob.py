"""Quantised parts to the bytes of a blob (:mod:`anvil.kernels.blocks`) and back, without changing a bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import torch

from anvil.kernels import embedding_blocks, linear_blocks
from anvil.kernels.base import Kernel
from anvil.kernels.blocks import BlockFormat, Field
from anvil.kernels.panel import Panel, panel_of
from anvil.quant.base import FileBlocks, PackedTensor, Quantised, QuantMode
from anvil.targets.base import Target

Parts = dict[str, torch.Tensor]


def block_mode(
    name: str,
    formats: BlockFormat | Callable[[Target], BlockFormat],
    quantise: Callable[[torch.Tensor], Quantised],
    dequantise: Callable[[Quantised], torch.Tensor],
    *,
    file: FileBlocks | None = None,
    table: str = "",
    tied: str = "",
) -> QuantMode:
    """The mode whose weights lie in one blob. ``formats`` may depend on the target in how codes are decoded.

    Parts carry the names of the format's fields. Fields of less than 8 bits are given as one uint8 per element.
    """

    def format_of(target: Target) -> BlockFormat:
        return formats if isinstance(formats, BlockFormat) else formats(target)

    def tensors(outputs: int, inputs: int, target: Target) -> tuple[PackedTensor, ...]:
        panel, own = panel_of(target), format_of(target)
        shape = (panel.count(outputs), own.panel_bytes(inputs, panel.width))
        return (PackedTensor("w", "i8", shape, own.layout(panel)),)

    @functools.cache
    def build_linear(target: Target, has_bias: bool = False) -> Kernel:
        return linear_blocks.build_for(target, format_of(target), has_bias)

    @functools.cache
    def build_embedding(target: Target) -> Kernel:
        return embedding_blocks.build_for(target, format_of(target))

    return QuantMode(
        name=name,
        quantise=quantise,
        dequantise=dequantise,
        tensors=tensors,
        pack=lambda weight, target: {"w": pack(format_of(target), panel_of(target), weight)},
        unpack=lambda packed, shape, target: unpack(format_of(target), panel_of(target), packed["w"], shape),
        build_linear=build_linear,
        build_embedding=build_embedding,
        file=file,
        table=table,
        tied=tied,
    )


def pack(format_: BlockFormat, panel: Panel, weight: Quantised) -> torch.Tensor:
    """i8 [P, bytes]; outputs that fill up the last panel are zero in every field."""
    head = _interleaved(format_.head, panel, weight)
    blocks = _interleaved(format_.fields, panel, weight)
    panels = panel.count(weight.shape[0])
    flat = [piece.reshape(panels, piece.shape[1] * piece.shape[2]) for piece in (head, blocks)]
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(flat, axis=1)).view(np.int8))


def unpack(format_: BlockFormat, panel: Panel, blob: torch.Tensor, shape: tuple[int, int]) -> Quantised:
    """The inverse of :func:`pack`."""
    flat = blob.numpy().view(np.uint8)
    split = format_.head_bytes(panel.width)
    parts = _separated(format_.head, panel, flat[:, :split].reshape(len(flat), 1, split), shape[0])
    size = format_.block_bytes(panel.width)
    count = format_.blocks(shape[1])
    blocks = flat[:, split:].reshape(len(flat), count, size)
    return Quantised(shape, parts | _separated(format_.fields, panel, blocks, shape[0]))


def _interleaved(fields: tuple[Field, ...], panel: Panel, weight: Quantised) -> np.ndarray:
    """The fields as bytes [P, blocks, bytes per block]."""
    panels = panel.count(weight.shape[0])
    pieces = [np.empty((panels, 1, 0), np.uint8)] if not fields else []
    for field in fields:
        part = weight.parts[field.name].contiguous()
        units = _units(field, part)
        outputs, blocks, rows = units.shape
        padded = np.zeros((panels * panel.width, blocks, rows), units.dtype)
        padded[:outputs] = units
        rows_first = padded.reshape(panels, panel.width, blocks, rows).transpose(0, 2, 3, 1)
        pieces.append(
            np.ascontiguousarray(rows_first).view(np.uint8).reshape(panels, blocks, field.nbytes(panel.width))
        )
    return np.concatenate(pieces, axis=2)


def _separated(fields: tuple[Field, ...], panel: Panel, blocks: np.ndarray, outputs: int) -> Parts:
    parts: Parts = {}
    first = 0
    for field in fields:
        last = first + field.nbytes(panel.width)
        unit = np.dtype(f"u{field.unit // 8}")
        raw = np.ascontiguousarray(blocks[:, :, first:last]).view(unit)
        panels, count, _ = blocks.shape
        units = raw.reshape(panels, count, field.rows, panel.width).transpose(0, 3, 1, 2)
        units = units.reshape(panels * panel.width, count, field.rows)[:outputs]
        parts[field.name] = torch.from_numpy(_elements(field, np.ascontiguousarray(units)))
        first = last
    return parts


def _units(field: Field, part: torch.Tensor) -> np.ndarray:
    """What is loaded for one output: unsigned elements, or words of several with the first lowest."""
    if field.bits == field.unit:
        return _bits(part, field.bits)
    elements = part.numpy() if field.bits < 8 else _bits(part, field.bits)
    unit = np.dtype(f"u{field.unit // 8}")
    if field.bits in (1, 2, 4):
        return _folded(field, elements).view(unit).reshape(*part.shape[:2], field.rows)
    per_word = field.unit // field.bits
    small = elements.reshape(*part.shape[:2], field.rows, per_word).astype(unit)
    assert (small >> field.bits).max(initial=0) == 0, f"field {field.name}: a code needs more than {field.bits} bits"
    return np.bitwise_or.reduce(small << (np.arange(per_word, dtype=unit) * field.bits), axis=3)


def _folded(field: Field, codes: np.ndarray) -> np.ndarray:
    """Codes of 1, 2 or 4 bits, one per byte, as bytes that are full: neighbours move together, two bytes at a time."""
    bits = field.bits
    assert codes.max(initial=0) >> bits == 0, f"field {field.name}: a code needs more than {bits} bits"
    while bits < 8:
        pairs = codes.view("<u2")
        codes = (pairs | pairs >> (8 - bits)).astype(np.uint8)
        bits *= 2
    return codes


def _elements(field: Field, units: np.ndarray) -> np.ndarray:
    """The inverse of :func:`_units`, as unsigned integers."""
    if field.bits == field.unit:
        return units
    places = np.arange(field.unit // field.bits, dtype=units.dtype) * field.bits
    small = (units[..., None] >> places) & units.dtype.type((1 << field.bits) - 1)
    return small.astype(f"u{max(field.bits // 8, 1)}").reshape(*units.shape[:2], field.count)


def _bits(part: torch.Tensor, bits: int) -> np.ndarray:
    """A part of ``bits`` bits per element as unsigned integers."""
    assert part.element_size() * 8 == bits, f"expected elements of {bits} bits, got {part.dtype}"
    return part.view({8: torch.uint8, 16: torch.int16, 32: torch.int32}[bits]).numpy().view(f"u{bits // 8}")


def padded_blocks(weight: torch.Tensor, size: int) -> torch.Tensor:
    """w [N, K] as f32 [N, blocks, size], the last block filled up with zeros."""
    outputs, inputs = weight.shape
    blocks = -(-inputs // size)
    padded = torch.nn.functional.pad(weight.float(), (0, blocks * size - inputs))
    return padded.reshape(outputs, blocks, size)


def flattened(values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """[N, blocks, size] as [N, K], without the padding."""
    return values.reshape(values.shape[0], -1)[:, : shape[1]]


def as_dtype(parts: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype) -> torch.Tensor:
    """A part read as ``dtype``: unpacking gives back plain unsigned integers."""
    part = parts[name]
    return part if part.dtype == dtype else part.view(dtype)


def halves_to_bytes(part: torch.Tensor) -> torch.Tensor:
    """f16 [N, blocks, count] as the bytes of a file: uint8 [N, blocks, 2 count]."""
    return part.contiguous().view(torch.uint8)


def nibbles_from_file(pairs: torch.Tensor) -> torch.Tensor:
    """Codes of 32 weights out of 16 bytes: low nibbles are the first 16, high nibbles the others."""
    return torch.cat([pairs & 15, pairs >> 4], dim=2)


def nibbles_to_file(codes: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`nibbles_from_file`."""
    return codes[..., :16] | (codes[..., 16:] << 4)


def half_at_least(values: torch.Tensor) -> torch.Tensor:
    """Numbers >= 0 rounded up to f16, so that integers times it reach them (f16 is coarse below 6e-5)."""
    nearest = values.half()
    above = (nearest.view(torch.int16) + 1).view(torch.float16)
    return torch.where(nearest.float() < values, above, nearest)
