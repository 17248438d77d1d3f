"""Attention over a ring cache, for layers with a window: position p lies in slot p mod capacity.

A ring takes the memory of a window and the tokens fed at once, however long the text: capacity must be at least
window + tokens - 1, so that no key is overwritten before the last query that sees it. The kernel is ``decode``'s
(:mod:`anvil.attention.walk`), with its bits.
"""

from __future__ import annotations

import functools

from anvil.attention.base import AttentionVariant, Visibility
from anvil.attention.walk import walk
from anvil.errors import InputError
from anvil.kernels.base import Kernel
from anvil.targets.base import Target


@functools.cache
def build(target: Target, visibility: Visibility) -> Kernel:
    """Raises :class:`InputError` without a causal window: a ring forgets, so all that is seen must be recent."""
    if visibility.window is None or not visibility.causal:
        raise InputError(f"building attention over a ring cache: {visibility}, expected causal with a window")
    return walk("attention_ring", target, visibility, "ring")


VARIANT = AttentionVariant("sliding_window", ("prefill", "decode"), build, family="attention_ring")
