"""Attention over a paged cache: position p of sequence b lies in slot p mod P of page table[b, p div P].

Keys and values are [pages, Hkv, P, D]; table is i64 [B, most pages per sequence]. Only entries of positions that a
query sees are looked up. The kernel is ``decode``'s (:mod:`anvil.attention.walk`), with its bits.
"""

from __future__ import annotations

import functools

from anvil.attention.base import AttentionVariant, Visibility
from anvil.attention.walk import walk
from anvil.kernels.base import Kernel
from anvil.targets.base import Target


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    return walk("attention_paged", target, visibility, "paged")


VARIANT = AttentionVariant("paged", ("prefill", "decode"), build, family="attention_paged")
