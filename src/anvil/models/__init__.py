"""Weight sources: each module of this package with a ``SOURCE`` is one. Nothing here uses the network."""

from __future__ import annotations

from functools import cache

from anvil.discovery import offered
from anvil.errors import WeightsError
from anvil.models.base import LoadedModel, Source

__all__ = ["LoadedModel", "Source", "load", "sources"]


@cache
def sources() -> tuple[Source, ...]:
    """Every known source, those with a prefix first (a path could match anything)."""
    found = offered(__name__, __path__, "SOURCE")
    return tuple(sorted(found, key=lambda source: (":" not in source.syntax, source.kind)))


def load(source: str) -> LoadedModel:
    """Open a causal language model from a source such as ``model.gguf`` or ``synthetic:config.json``.

    Raises :class:`WeightsError`: nothing such exists, the file is damaged, a shard is missing. Weights
    are read when the model is compiled.
    """
    for candidate in sources():
        if candidate.matches(source):
            return candidate.load(source)
    known = ", ".join(candidate.syntax for candidate in sources())
    raise WeightsError(f"loading source={source!r}: no such file or folder; expected one of: {known}")
