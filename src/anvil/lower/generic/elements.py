"""Single elements of memory as numbers to compute with, for kernels written as loops."""

from __future__ import annotations

from anvil.kernels.dsl import Ref, Val
from anvil.lower.generic.apply import from_f32, to_f32
from anvil.lower.generic.num import Num, convert

_HALVES = ("f16", "bf16")


def loaded(ref: Ref, dtype: str, converts_f16: bool, *at: Val) -> Num:
    """The element at ``at`` of memory that holds ``dtype``; 16-bit floats as f32, bools as i1."""
    value = ref.load(*at)
    if dtype in _HALVES:
        return Num(to_f32(value.bits(dtype), converts_f16).ssa, "f32")
    return convert(Num(value.ssa, "ui8"), "i1") if dtype == "i1" else Num(value.ssa, dtype)


def stored(ref: Ref, value: Num, dtype: str, converts_f16: bool, *at: Val) -> None:
    """Write what :func:`loaded` would give, rounded to ``dtype``."""
    if dtype in _HALVES:
        ref.store(from_f32(Val(value.ssa), dtype, converts_f16).bits("i16"), *at)
    else:
        ref.store(Val((convert(value, "ui8") if dtype == "i1" else value).ssa), *at)
