"""Seeded random weights for a configuration: ``synthetic:config.json`` or ``synthetic:config.json#seed=7``.

Each tensor draws from its own counter-based stream, keyed by the seed and its name, so the bits depend neither on
the order of parameters nor on the machine (:mod:`anvil.models.draw`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anvil.errors import WeightsError
from anvil.models.base import LoadedModel, Source, existing
from anvil.models.counted import counted_weights, drawn
from anvil.models.skeleton import skeleton, typed_config

PREFIX = "synthetic:"


def load(text: str) -> LoadedModel:
    """Build the model of a configuration file. Raises :class:`WeightsError` for an unreadable configuration."""
    name, _, options = text.removeprefix(PREFIX).partition("#")
    path = existing(Path(name), f"configuration {name}")
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text())
        seed = int(options.removeprefix("seed=") or 0)
    except (OSError, ValueError) as error:
        raise WeightsError(f"loading {text}: expected {SOURCE.syntax}: {error}") from error
    return build(config, seed=seed)


def build(config: Mapping[str, Any], *, seed: int = 0) -> LoadedModel:
    """A causal language model of ``config`` (keys of config.json, with ``model_type``) with random weights.

    Matrices have the configuration's ``initializer_range`` as deviation; norm weights lie around one, so that a
    forgotten norm weight shows.
    """
    typed = typed_config(config)
    scale = float(getattr(typed, "initializer_range", 0.02))
    table = {}
    for name, parameter in skeleton(typed).named_parameters():
        shape = tuple(parameter.shape)
        is_norm = len(shape) == 1 and name.endswith("weight")
        table[name] = {"shape": shape, "spread": 0.1 if is_norm else scale, "centre": 1.0 if is_norm else 0.0}
    return drawn({**typed.to_dict(), **config}, counted_weights(seed, table), seed, "synthetic weights")


SOURCE = Source(
    kind="synthetic",
    syntax="synthetic:path/to/config.json[#seed=<int>]",
    matches=lambda text: text.startswith(PREFIX),
    load=load,
)
