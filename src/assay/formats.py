"""Number formats by predicate: unit roundoff, range, units in the last place. No rule elsewhere names a format."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Format:
    """One element type. ``bits`` counts significand bits including the hidden one; 0 marks an integer type."""

    name: str
    torch: torch.dtype
    bits: int
    max: float
    smallest_normal: float

    @property
    def is_float(self) -> bool:
        return self.bits > 0

    @property
    def u(self) -> float:
        """Unit roundoff: the largest relative error of one rounding to nearest."""
        return 2.0**-self.bits

    @property
    def eta(self) -> float:
        """The smallest positive (denormal) number: twice the largest error of one rounding near zero."""
        return self.smallest_normal * 2.0 ** (1 - self.bits)

    def ulp(self, x: np.ndarray) -> np.ndarray:
        """Distance between neighbouring numbers of this format at ``abs(x)``, as float64; NaN and Inf give NaN."""
        with np.errstate(invalid="ignore"):
            _, exponent = np.frexp(np.maximum(np.abs(x), self.smallest_normal))
            spacing = np.ldexp(1.0, exponent - self.bits)
        return np.where(np.isfinite(x), spacing, np.nan)

    def round(self, x: np.ndarray) -> np.ndarray:
        """float64 → this format (nearest even, overflow to Inf) → float64. Integers pass unchanged."""
        if not self.is_float:
            return x
        return torch.from_numpy(np.asarray(x, np.float64, order="C")).to(self.torch).to(torch.float64).numpy()


def _float(name: str, dtype: torch.dtype) -> Format:
    info = torch.finfo(dtype)
    return Format(name, dtype, 1 - int(math.log2(info.eps)), info.max, info.smallest_normal)


def _integer(name: str, dtype: torch.dtype) -> Format:
    return Format(name, dtype, 0, torch.iinfo(dtype).max, 0.0)


F64 = _float("f64", torch.float64)
F32 = _float("f32", torch.float32)
F16 = _float("f16", torch.float16)
BF16 = _float("bf16", torch.bfloat16)
I64 = _integer("i64", torch.int64)
I32 = _integer("i32", torch.int32)
I16 = _integer("i16", torch.int16)
I8 = _integer("i8", torch.int8)
U8 = _integer("u8", torch.uint8)
BOOL = Format("bool", torch.bool, 0, 1, 0.0)

FORMATS = {f.name: f for f in (BF16, F16, F32, F64, I16, I32, I64, I8, U8, BOOL)}


def of(dtype: torch.dtype) -> Format:
    """The format of a torch dtype. Raises ``KeyError`` naming the dtype when assay has no such format."""
    for known in FORMATS.values():
        if known.torch == dtype:
            return known
    raise KeyError(f"number format of a tensor: dtype={dtype}, expected one of {sorted(FORMATS)}")


def accumulator(fmt: Format) -> Format:
    """The type sums are carried in: float32 for every float of at most 32 bits (numeric contract, docs)."""
    return F64 if fmt.name == "f64" else F32 if fmt.is_float else fmt
