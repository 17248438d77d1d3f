"""What an attention variant is, and the rules all variants share. One file per variant holds ``VARIANT``.

Every variant's kernel takes q [B, H, S, D], k and v [B, Hkv, T, D], past i64 [B], y [B, H, S, D] (all f32, innermost
stride 1) and scale. Query head h reads key head h // (H / Hkv). Query s of row b stands at position past[b] + s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from anvil.kernels.base import Kernel
from anvil.kernels.define import Argument, memref, scalar
from anvil.kernels.dsl import Val, const, eq, greater, lesser, select
from anvil.targets.base import Target


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees: with ``causal`` those up to its own position, with ``window`` the last of them."""

    causal: bool = True
    window: int | None = None

    @property
    def suffix(self) -> str:
        """What a kernel's name says of the rule."""
        return ("_causal" if self.causal else "") + ("" if self.window is None else f"_window{self.window}")

    def limits(self, position: Val, keys: Val) -> tuple[Val, Val]:
        """The range [first, last) of visible keys, out of ``keys``, of a query at ``position``: scalars or vectors."""
        zero = const(0, position.type)
        last = lesser(position + 1, keys) if self.causal else keys
        first = zero if self.window is None else greater(position - (self.window - 1), zero)
        return first, last


@dataclass(frozen=True)
class AttentionVariant:
    """``build(target, visibility)`` makes the kernel; ``phases`` are where the compiler may choose it."""

    name: str
    phases: tuple[Literal["prefill", "decode"], ...]
    build: Callable[[Target, Visibility], Kernel]


def arguments() -> list[Argument]:
    """The parameters of every attention kernel."""
    tensors = [memref(name, "in", "f32", 4) for name in ("q", "k", "v")]
    return [*tensors, memref("past", "in", "i64", 1), memref("y", "out", "f32", 4), scalar("scale", "f32")]


def finite_or_zero(maximum: Val) -> Val:
    """What to subtract from scores: their maximum, but 0 while no key was seen (-Inf - -Inf would be NaN)."""
    return select(eq(maximum, -inf), const(0.0, maximum.type), maximum)


def nonzero(total: Val) -> Val:
    """What to divide by: the sum of weights, but 1 when there are none, so that a fully masked row is zeros."""
    return select(eq(total, 0.0), const(1.0, total.type), total)
