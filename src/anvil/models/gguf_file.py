"""Weights from one GGUF file: ``path/to/model.gguf``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from anvil.codegen import cache
from anvil.errors import WeightsError
from anvil.models import assemble
from anvil.models.base import LoadedModel, Source, existing, ids_of, sha256
from anvil.models.gguf_weights import GgufTensors, read_checked
from anvil.models.weights import Weights, fingerprint


def load(text: str) -> LoadedModel:
    """Open a GGUF file with its tokenizer. Raises :class:`WeightsError` for a damaged or truncated one.

    Parsing the header takes seconds, above all the vocabulary in it; the configuration found is kept in the cache.
    """
    path = existing(Path(text), f"GGUF file {text}")
    what = f"GGUF file {path}"
    mark = fingerprint([path])
    reader = functools.cache(lambda: read_checked(path))
    versions = [f"{name}={metadata.version(name)}" for name in ("transformers", "gguf")]
    settings = json.loads(
        cache.get_or_make(
            cache.key("gguf configuration", mark, *versions),
            lambda: json.dumps(_settings(path, reader())).encode(),
        )
    )
    tensors = GgufTensors(reader, lambda: model.config, lambda: tuple(model.parameters))
    model = LoadedModel(
        what=what,
        settings=settings,
        weights=Weights(mark, tensors.originals, tensors.stored),
        load_module=lambda: _module(path),
        stop_ids=ids_of(settings.get("eos_token_id")),
        load_tokenizer=lambda: _tokenizer(path),
        facts=lambda: {
            "source": text,
            "kind": SOURCE.kind,
            "sha256": sha256([path]),
            "bytes": path.stat().st_size,
        },
    )
    return model


def _settings(path: Path, reader: Any) -> dict[str, Any]:
    """The keys of config.json, as transformers translates the header."""
    with assemble.quiet_transformers(), _parse_once(path, reader):
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        try:
            return load_gguf_checkpoint(str(path), return_tensors=False)["config"]
        except Exception as error:  # anything from KeyError to struct.error for a header that is not what it should be
            raise WeightsError(f"loading GGUF file {path}: its header cannot be understood: {error!r}") from error


def _module(path: Path) -> Any:
    with _parse_once(path, read_checked(path)):
        return assemble.causal_lm(path.parent, what=f"GGUF file {path}", gguf_file=path.name)


def _tokenizer(path: Path) -> Any | None:
    with _parse_once(path, read_checked(path)):
        return assemble.tokenizer(path.parent, gguf_file=path.name)


@contextmanager
def _parse_once(path: Path, reader: Any) -> Iterator[None]:
    """Give the gguf package's users what was parsed already, for the time of the block: transformers parses the
    header for the configuration, the tokenizer and the weights, and builds the table of names once per module."""
    import gguf

    original = gguf.GGUFReader

    def again(name: Any, *args: Any) -> Any:
        return reader if Path(name) == path else original(name, *args)

    with (
        mock.patch.object(gguf, "GGUFReader", again),
        mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ):
        yield


SOURCE = Source(
    kind="gguf",
    syntax="path/to/model.gguf",
    matches=lambda text: text.endswith(".gguf"),
    load=load,
)
