"""Weights from one GGUF file: ``path/to/model.gguf``. Quantised tensors are expanded to the asked type."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import gguf
import torch

from anvil.errors import WeightsError
from anvil.models import assemble
from anvil.models.base import LoadedModel, Source, existing, sha256
from anvil.models.stored import stored_weights


def load(text: str, dtype: torch.dtype) -> LoadedModel:
    """Load a GGUF file with its tokenizer. Raises :class:`WeightsError` for a damaged or truncated one."""
    path = existing(Path(text), f"GGUF file {text}")
    with _parse_once():
        reader = _checked(path)
        module = assemble.causal_lm(path.parent, dtype, what=f"GGUF file {path}", gguf_file=path.name)
        tokenizer = assemble.tokenizer(path.parent, gguf_file=path.name)
    return LoadedModel(
        module=module,
        config=module.config,
        tokenizer=tokenizer,
        provenance={"source": text, "kind": SOURCE.kind, "sha256": sha256([path]), "bytes": path.stat().st_size},
        stored=functools.partial(stored_weights, reader, module),
    )


@contextmanager
def _parse_once() -> Iterator[None]:
    """Remember what the gguf package has read while a model is being loaded.

    transformers parses the header for the configuration, the tokenizer and the weights, and builds the table of
    names once per module; each takes seconds.
    """
    with (
        mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ):
        yield


def _checked(path: Path) -> gguf.GGUFReader:
    """The file, mapped into memory: it is GGUF and holds all the tensors its header promises."""
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise WeightsError(
            f"loading GGUF file {path}: it begins with {magic!r}, expected b'GGUF'; this is not a GGUF file"
        )
    try:
        return gguf.GGUFReader(str(path))  # maps every tensor, so it fails where one reaches past the end of the file
    except Exception as error:
        raise WeightsError(
            f"loading GGUF file {path}: bytes={nbytes} is less than its header promises; the file is truncated or "
            "damaged; download it again"
        ) from error


SOURCE = Source(
    kind="gguf",
    syntax="path/to/model.gguf",
    matches=lambda text: text.endswith(".gguf"),
    load=load,
)
