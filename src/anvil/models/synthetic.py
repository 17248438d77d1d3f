"""Seeded random weights for a configuration: ``synthetic:config.json`` or ``synthetic:config.json#seed=7``.

Each tensor draws from its own counter-based stream, keyed by the seed and its name, so the bits depend neither on
the order of parameters nor on the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anvil.errors import WeightsError
from anvil.models import assemble
from anvil.models.base import LoadedModel, Source, existing

PREFIX = "synthetic:"


def load(text: str, dtype: torch.dtype) -> LoadedModel:
    """Build the model of a configuration file. Raises :class:`WeightsError` for an unreadable configuration."""
    name, _, options = text.removeprefix(PREFIX).partition("#")
    path = existing(Path(name), f"configuration {name}")
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text())
        seed = int(options.removeprefix("seed=") or 0)
    except (OSError, ValueError) as error:
        raise WeightsError(f"loading {text}: expected {SOURCE.syntax}: {error}") from error
    return build(config, seed=seed, dtype=dtype)


def build(config: Mapping[str, Any], *, seed: int = 0, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """A causal language model of ``config`` (keys of config.json, with ``model_type``) with random weights.

    Matrices are normal with the configuration's ``initializer_range``; norm weights lie around one, so that a
    forgotten norm weight shows.
    """
    with assemble.quiet_transformers() as transformers:
        if "model_type" not in config:
            raise WeightsError("building synthetic weights: the configuration has no model_type, expected e.g. 'llama'")
        settings = dict(config)
        try:
            typed = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
        except ValueError as error:
            raise WeightsError(
                f"building synthetic weights: model_type={config['model_type']} is not one transformers knows"
            ) from error
        with torch.device("meta"):
            blank = transformers.AutoModelForCausalLM.from_config(typed)
    scale = float(getattr(typed, "initializer_range", 0.02))
    state = dict(_weights(blank, seed, scale, dtype))
    module = assemble.causal_lm(None, dtype, what="synthetic weights", config=typed, state=state)
    return LoadedModel(
        module=module,
        config=module.config,
        tokenizer=None,
        provenance={"source": "synthetic", "kind": SOURCE.kind, "seed": seed, "sha256": _digest(state)},
    )


def _weights(blank: torch.nn.Module, seed: int, scale: float, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Random values for every parameter; a tied parameter appears once, under its first name."""
    for name, parameter in blank.named_parameters():
        key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16]
        stream = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        values = stream.standard_normal(tuple(parameter.shape), dtype=np.float32)
        is_norm = parameter.ndim == 1 and name.endswith("weight")
        values = 1.0 + 0.1 * values if is_norm else scale * values
        yield name, torch.from_numpy(np.asarray(values, dtype=np.float32)).to(dtype)


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


SOURCE = Source(
    kind="synthetic",
    syntax="synthetic:path/to/config.json[#seed=<int>]",
    matches=lambda text: text.startswith(PREFIX),
    load=load,
)
