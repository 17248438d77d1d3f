"""Element types: the MLIR name a kernel parameter carries, its PyTorch type and its size."""

from __future__ import annotations

import torch

from anvil.errors import UnsupportedError

TORCH_OF_MLIR: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "ui8": torch.uint8,
    "i1": torch.bool,
    "index": torch.int64,
}
MLIR_OF_TORCH: dict[torch.dtype, str] = {t: m for m, t in TORCH_OF_MLIR.items() if m != "index"}


def mlir_name(dtype: torch.dtype) -> str:
    """MLIR element type of a PyTorch type. Raises :class:`UnsupportedError` for one that no kernel takes."""
    if dtype not in MLIR_OF_TORCH:
        raise UnsupportedError(f"dtype={dtype} has no kernels; known are {', '.join(map(str, MLIR_OF_TORCH))}")
    return MLIR_OF_TORCH[dtype]


def itemsize(dtype: str) -> int:
    """Bytes of one element in memory. An ``i1`` takes a whole byte."""
    return TORCH_OF_MLIR[dtype].itemsize


_MEMORY = {"i1": "i8", "ui8": "i8", "f16": "i16", "bf16": "i16"}


def memory_name(dtype: str) -> str:
    """MLIR element type of memory that holds ``dtype``, where that differs from what it is in registers.

    A bool takes a byte, and unsigned bytes have no type of their own. 16-bit floats are moved as integers: where a
    target has no such float, code generators turn even their loads and stores into library calls.
    """
    return _MEMORY.get(dtype, dtype)
