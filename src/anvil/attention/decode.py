"""Attention for decoding: few queries (usually one) over a long cache (:mod:`anvil.attention.walk`).

Same bits as ``flash``. Error: the attention bound of the numeric contract.
"""

from __future__ import annotations

import functools

from anvil.attention.base import AttentionVariant, Visibility
from anvil.attention.walk import walk
from anvil.kernels.base import Kernel
from anvil.targets.base import Target


@functools.cache
def build(target: Target, visibility: Visibility = Visibility()) -> Kernel:  # noqa: B008 (frozen)
    return walk("attention_decode", target, visibility)


VARIANT = AttentionVariant("decode", ("decode",), build)
