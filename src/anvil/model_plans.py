"""From a language model to its plans for a target: everything a compilation needs PyTorch's tracer for.

What comes out is data, so it is kept in the cache under the hash of all that it depends on: the configuration, the
model's code, this compiler's code, the target and the choices. A start that finds it neither traces nor lowers, and
does not even import what does (:mod:`anvil.model_trace`).
"""

from __future__ import annotations

import functools
import json
import os
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from anvil.codegen import cache
from anvil.models.base import LoadedModel
from anvil.quant import AS_STORED, Stored, choose
from anvil.runtime.model import Points
from anvil.runtime.plan import Plan
from anvil.targets.base import Target
from anvil.timing import Stopwatch

if TYPE_CHECKING:
    from anvil.model_trace import Programs

_PACKAGES = ("torch", "transformers", "sympy", "numpy")


@dataclass(frozen=True)
class Choices:
    """What a model is compiled for. ``context`` bounds the length of a sequence."""

    target: Target
    quant: str
    attention: str
    context: int
    kv: torch.dtype = torch.float32  # element type of the caches


@dataclass(frozen=True)
class ModelPlans:
    """The three plans of a model. ``layers`` maps layer names to graph nodes, ``inside`` says where
    modules end in the graphs, ``paths`` parameters of the plans to
    names in the model, ``shapes`` names of the model's weights to shapes; ``constants`` are parameters that its code
    computes.
    """

    logits: Plan
    prefill: Plan
    decode: Plan
    vocabulary: int
    layers: Mapping[str, str]
    inside: Points
    paths: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, torch.Tensor]


def plans_of_module(module: torch.nn.Module, choices: Choices, watch: Stopwatch) -> tuple[ModelPlans, dict[str, Any]]:
    """The plans of a module in memory, and its parameters: nothing says what it depends on, so nothing is kept.

    Raises: as :func:`anvil.compile`.
    """
    from anvil.model_trace import lowered, trace

    choose(choices.quant)
    programs = trace(module, choices, {}, watch)
    return lowered(programs, choices, set(), watch), dict(programs.whole.params)


def plans_of_model(model: LoadedModel, choices: Choices, watch: Stopwatch) -> ModelPlans:
    """The plans of a loaded model, out of the cache where they are in it. Raises: as :func:`anvil.compile`."""
    made: list[ModelPlans] = []

    def make() -> bytes:
        from anvil.model_trace import lowered

        with watch.stage("build"):
            model.originals(model.parameters)  # refused now if they do not fit, before the long work
            stored = model.stored if choices.quant == AS_STORED else {}
        choose(choices.quant, stored)
        programs = _traced_once(model, choices, stored, watch)
        made.append(lowered(programs, choices, set(model.parameters), watch))
        return pickle.dumps(made[0])

    with watch.stage("look up"):
        found = cache.look_up(_key(model, choices))
    if found is not None:
        with watch.stage("look up"):
            return pickle.loads(found)
    cache.get_or_make(_key(model, choices), make)
    return made[0]


def _traced_once(model: LoadedModel, choices: Choices, stored: Mapping[str, Stored], watch: Stopwatch) -> Programs:
    """The graphs of a model, traced once for all targets it is compiled for while it is in memory."""
    from anvil.model_trace import trace

    key = (choices.context, choices.kv, tuple(sorted((name, item.mode) for name, item in stored.items())))
    if key not in model.traced:
        model.traced[key] = trace(model.skeleton, choices, stored, watch)
    return model.traced[key]


def _key(model: LoadedModel, choices: Choices) -> str:
    """Hash of everything that decides the plans."""
    contents = model.weights.fingerprint if choices.quant == AS_STORED else ""
    asked = (choices.quant, choices.attention, str(choices.context), str(choices.kv), repr(choices.target))
    return cache.key("model plans", json.dumps(model.settings, sort_keys=True, default=str), *asked, contents, _code())


@functools.cache
def _code() -> str:
    """Everything but the model's configuration that shapes its graph: this compiler and the code of models."""
    own = Path(__file__).parent
    sources = [path.read_bytes() for path in sorted(own.rglob("*.py"))]
    versions = [f"{name}={metadata.version(name)}" for name in _PACKAGES]
    return cache.key(*versions, *sources, *_state_of(util.find_spec("transformers")))


def _state_of(package: Any) -> Iterable[str]:
    """Size and time of every file of a package that holds model code, which is too much to read."""
    for folder in package.submodule_search_locations if package else ():
        for place, _, files in sorted(os.walk(folder)):
            for file in sorted(files):
                if file.endswith(".py"):
                    found = os.stat(os.path.join(place, file))
                    yield f"{place}/{file} {found.st_size} {found.st_mtime_ns}"
