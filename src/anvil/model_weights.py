"""From a loaded model to what its plans' weight buffers are made of."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import torch

from anvil.codegen import cache
from anvil.model_plans import Choices, ModelPlans
from anvil.models.base import LoadedModel
from anvil.models.weights import check_finite
from anvil.quant import WeightRow
from anvil.runtime.original import Original
from anvil.runtime.pack import Packer
from anvil.runtime.plan import Buffer

_SOURCES = ("dtypes.py", "kernels", "models", "quant", "runtime/pack.py", "targets")  # code that decides packed bytes


class ModelWeights:
    """The parameters of a model's plans, by the names they have there, and how they are packed.

    Nothing is opened before it is asked for: a start that finds the packed file needs none of it.
    """

    def __init__(self, model: LoadedModel, plans: ModelPlans, choices: Choices, *, measure: bool) -> None:
        self._model, self._plans, self._choices, self._measure = model, plans, choices, measure

    @functools.cached_property
    def packer(self) -> Packer:
        """While packing, a weight that is not finite raises :class:`anvil.errors.WeightsError`."""
        model, paths = self._model, self._plans.paths
        stored = {} if self._choices.quant == "fp32" else model.stored
        return Packer(
            self._choices.quant,
            self._choices.target,
            stored={name: stored[path] for name, path in paths.items() if path in stored},
            measure=self._measure,
            check=lambda name, values: check_finite(paths[name], values, model.what),
        )

    @functools.cached_property
    def _held(self) -> Mapping[str, Original]:
        return self._model.originals(self._plans.shapes)

    def params(self) -> dict[str, torch.Tensor | Original]:
        """All parameters, by name."""
        found: dict[str, torch.Tensor | Original] = dict(self._plans.constants)
        for name, path in self._plans.paths.items():
            if path in self._plans.shapes:
                found[name] = self._late(path, self._plans.shapes[path])
        return found

    def pack(self, buffer: Buffer, parameter: str, weight: Original, out: torch.Tensor) -> None:
        """See :class:`Packer`."""
        self.packer(buffer, parameter, weight, out)

    def rows(self) -> list[WeightRow]:
        """What became of the weights packed so far."""
        return list(self.packer.rows.values())

    def file_name(self) -> str | None:
        """The name of the file that keeps the weights packed; None where originals are wanted anyway."""
        return None if self._measure else _file_name(self._model, self._plans, self._choices)

    def _late(self, path: str, shape: tuple[int, ...]) -> Original:
        return Original(shape, lambda first, last: self._held[path].rows(first, last))


def _file_name(model: LoadedModel, plans: ModelPlans, choices: Choices) -> str:
    buffers = [repr(plans.decode.buffers[name]) for name in plans.decode.weights]
    constants = [f"{name} {value.tolist()}" for name, value in plans.constants.items()]
    parts = (model.weights.fingerprint, choices.quant, repr(choices.target), *buffers, *constants)
    return cache.key("packed weights", *parts, _code())


@functools.cache
def _code() -> str:
    own = Path(__file__).parent
    files = [path for name in _SOURCES for path in sorted([own / name, *(own / name).rglob("*.py")]) if path.is_file()]
    return cache.key(*(path.read_bytes() for path in files))
