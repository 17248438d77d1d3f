"""What an attention variant is, and the rules all variants share. One file per variant holds ``VARIANT``.

Every variant's kernel takes q [B, H, S, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv], past i64 [B], y [B, H, S, Dv]
(innermost stride 1) and scale. Query head h reads key head h // (H / Hkv). Query s of row b stands at position past[b]
+ s. What else a kernel takes follows from its :class:`Visibility` and from where its cache lies
(:mod:`anvil.attention.storage`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from anvil.kernels.base import Kernel
from anvil.kernels.define import Argument, memref, scalar
from anvil.kernels.dsl import Ref, Val, const, eq, greater, lesser, select
from anvil.targets.base import Target

Mask = Literal["", "i1", "f32"]
Element = Literal["f32", "f16", "bf16", "i8"]
Family = Literal["attention", "attention_ring", "attention_paged", "attention_latent"]


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees, what is done to its scores, and what keys and values are stored as.

    With ``causal`` a query sees keys up to its own position, with ``window`` the last of them. ``softcap`` bounds
    scores by ``c tanh(score / c)``, c being one more operand. ``mask`` is the element type of a mask [B, H, S, T], if
    there is one: bool, true where a key is visible, or f32, added to the scores, -Inf where a key is hidden.
    ``storage`` is the element type of k and v; i8 comes with a scale per key and head.
    """

    causal: bool = True
    window: int | None = None
    softcap: bool = False
    mask: Mask = ""
    storage: Element = "f32"

    @property
    def suffix(self) -> str:
        """What a kernel's name says of the rule."""
        parts = ["causal" if self.causal else "", "" if self.window is None else f"window{self.window}"]
        parts += ["softcap" if self.softcap else "", f"mask_{self.mask}" if self.mask else ""]
        parts += ["" if self.storage == "f32" else self.storage]
        return "".join(f"_{part}" for part in parts if part)

    def limits(self, position: Val, keys: Val) -> tuple[Val, Val]:
        """The range [first, last) of visible keys, out of ``keys``, of a query at ``position``: scalars or vectors."""
        zero = const(0, position.type)
        last = lesser(position + 1, keys) if self.causal else keys
        first = zero if self.window is None else greater(position - (self.window - 1), zero)
        return first, last


@dataclass(frozen=True)
class AttentionVariant:
    """One way to compute attention.

    ``build(target, visibility)`` makes the kernel; ``phases`` are where the compiler may choose it. ``family`` says
    what keys and values lie in, and so which specs run it: whole tensors, a ring, pages, or latents. A variant that
    cuts the keys into parts of ``split`` writes partial results, which the kernel that ``merge`` makes joins.
    """

    name: str
    phases: tuple[Literal["prefill", "decode"], ...]
    build: Callable[[Target, Visibility], Kernel]
    family: Family = "attention"
    split: int | None = None
    merge: Callable[[Target], Kernel] | None = None


@dataclass(frozen=True)
class Operands:
    """The parameters of an attention kernel, as its body gets them; None for what this kernel does not take."""

    q: Ref
    k: Ref
    v: Ref
    past: Ref
    y: Ref
    scale: Val
    k_scale: Ref | None = None
    v_scale: Ref | None = None
    table: Ref | None = None
    mask: Ref | None = None
    softcap: Val | None = None

    def bias(self, place: tuple[Val, Val, Val], key: Val) -> Val:
        """What the mask adds to a score, f32: 0 or -Inf for a bool mask."""
        assert self.mask is not None
        value = self.mask.load(*place, key)
        if str(value.element) == "f32":
            return value
        return select(eq(value, 0), const(-inf, "f32"), const(0.0, "f32"))


def arguments(rule: Visibility, *, table: bool = False, out_rank: int = 4) -> list[Argument]:
    """The parameters of an attention kernel, in order."""
    found = [memref("q", "in", "f32", 4)]
    for name in ("k", "v"):
        found.append(memref(name, "in", rule.storage, 4))
        if rule.storage == "i8":
            found.append(memref(f"{name}_scale", "in", "f32", 3, unit=False))
    found.append(memref("past", "in", "i64", 1))
    if table:
        found.append(memref("table", "in", "i64", 2))
    if rule.mask:
        found.append(memref("mask", "in", rule.mask, 4, unit=False))
    found += [memref("y", "out", "f32", out_rank), scalar("scale", "f32")]
    return [*found, scalar("softcap", "f32")] if rule.softcap else found


def unpack(parameters: list[Argument], values: tuple[Ref | Val, ...]) -> tuple[Operands, Val, Val]:
    """A kernel body's arguments: the operands, tid and nthreads."""
    *operands, tid, nthreads = values
    named = {argument.param.name: value for argument, value in zip(parameters, operands, strict=True)}
    assert isinstance(tid, Val) and isinstance(nthreads, Val)
    return Operands(**named), tid, nthreads  # type: ignore[arg-type]


def finite_or_zero(maximum: Val) -> Val:
    """What to subtract from scores: their maximum, but 0 while no key was seen (-Inf - -Inf would be NaN)."""
    return select(eq(maximum, -inf), const(0.0, maximum.type), maximum)


def nonzero(total: Val) -> Val:
    """What to divide by: the sum of weights, but 1 when there are none, so that a fully masked row is zeros."""
    return select(eq(total, 0.0), const(1.0, total.type), total)
