"""Weights that are drawn from a seed while they are packed: a folder with ``config.json`` and ``synthetic.json``.

``synthetic.json`` says ``{"recipe": 1, "seed": 5, "tensors": {name: {"shape": [...], "spread": s, "centre": c}}}``.
Tensor ``name`` consists of the first numbers of the stream ``"<seed>/<name>"`` of :mod:`anvil.models.draw`. A model of
any size is a few kilobytes on disk, and never as a whole in memory.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from anvil.errors import WeightsError
from anvil.models.base import LoadedModel, ids_of
from anvil.models.draw import draw
from anvil.models.weights import Weights
from anvil.runtime.original import Original

FILE = "synthetic.json"
RECIPE = 1


def counted_weights(seed: int, table: Mapping[str, Mapping[str, Any]]) -> Weights:
    """Tensors as a seed gives them. ``table`` is ``tensors`` of the file."""
    mark = hashlib.sha256(json.dumps([RECIPE, seed, table], sort_keys=True).encode()).hexdigest()

    def rows(name: str, first: int, last: int) -> torch.Tensor:
        entry = table[name]
        shape = (last - first, *entry["shape"][1:])
        inner = math.prod(shape[1:])
        centre = entry.get("centre", 0.0)
        values = draw(f"{seed}/{name}", first * inner, last * inner, entry["spread"], centre)
        return torch.from_numpy(values).reshape(shape)

    return Weights(
        mark,
        lambda: {name: Original(tuple(entry["shape"]), functools.partial(rows, name)) for name, entry in table.items()},
    )


def open_folder(folder: Path, settings: Mapping[str, Any], what: str) -> LoadedModel:
    """The model of a folder with ``synthetic.json``. Raises :class:`WeightsError` for one of another recipe."""
    try:
        found = json.loads((folder / FILE).read_text())
        recipe, seed = found["recipe"], int(found["seed"])
        weights = counted_weights(seed, found["tensors"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"loading {what}: {FILE} is damaged: {error!r}; make the folder again") from error
    if recipe != RECIPE:
        raise WeightsError(f"loading {what}: {FILE} has recipe={recipe}, expected {RECIPE}; make the folder again")
    return drawn(settings, weights, seed, what)


def drawn(settings: Mapping[str, Any], weights: Weights, seed: int, what: str) -> LoadedModel:
    """The model of a configuration with the weights of a seed."""
    from anvil.models import assemble

    model = LoadedModel(
        what=what,
        settings=settings,
        weights=weights,
        load_module=lambda: assemble.causal_lm(None, what=what, config=model.config, state=state()),
        stop_ids=ids_of(settings.get("eos_token_id")),
        facts=lambda: {"source": what, "kind": "synthetic", "seed": seed, "sha256": weights.fingerprint},
    )

    def state() -> dict[str, torch.Tensor]:
        return {name: original.whole() for name, original in weights.originals.items()}

    return model
