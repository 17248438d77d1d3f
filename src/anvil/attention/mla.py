"""Multi-head latent attention (DeepSeek), absorbed: every head attends to the same latents, which are keys and values.

The cache holds one row per token, [latent (R components), rotated key (Dr components)]: T x (R + Dr) numbers instead of
keys and values of every head. A query is [q_nope W_uk (R), rotated q (Dr)], so that q k is what it would be over the
expanded keys; the result [B, H, S, R] is turned into values by W_uv outside. Both products belong to the graph.

The kernel is ``decode``'s (:mod:`anvil.attention.walk`) with one key head for all query heads: the latents of a block
are read from memory once. k and v are both the cache, v its first R components (y says how many).
"""

from __future__ import annotations

import functools

from anvil.attention.base import AttentionVariant, Visibility
from anvil.attention.walk import walk
from anvil.kernels.base import Kernel
from anvil.targets.base import Target


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    return walk("attention_mla", target, visibility)


VARIANT = AttentionVariant("mla", ("prefill", "decode"), build, family="attention_latent")
