"""Mixtures of experts are captured as lookups of weights: what depends on the data are indices, never shapes.

transformers offers several ways to compute the same experts. The eager one loops over the experts that were hit, which
no graph with fixed shapes can say; ``batched_mm`` picks each token's matrices by index and multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NAME = "_experts_implementation"
BY_INDEX = "batched_mm"


@contextmanager
def experts_by_index(function: Any) -> Iterator[None]:
    """While the context lasts, experts of transformers models in ``function`` are computed by index."""
    modules = function.modules() if isinstance(function, torch.nn.Module) else ()
    configs = {id(c): c for module in modules if hasattr(c := getattr(module, "config", None), _NAME)}
    before = [(config, getattr(config, _NAME)) for config in configs.values()]
    try:
        for config, _ in before:
            setattr(config, _NAME, BY_INDEX)
        yield
    finally:
        for config, name in before:
            setattr(config, _NAME, name)
