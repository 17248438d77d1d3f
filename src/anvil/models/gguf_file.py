"""Weights from one GGUF file: ``path/to/model.gguf``. Quantised tensors are expanded to the asked type."""

from __future__ import annotations

from pathlib import Path

import torch

from anvil.errors import WeightsError
from anvil.models import assemble
from anvil.models.base import LoadedModel, Source, existing, sha256


def load(text: str, dtype: torch.dtype) -> LoadedModel:
    """Load a GGUF file with its tokenizer. Raises :class:`WeightsError` for a damaged or truncated one."""
    path = existing(Path(text), f"GGUF file {text}")
    _check(path)
    what = f"GGUF file {path}"
    module = assemble.causal_lm(path.parent, dtype, what=what, gguf_file=path.name)
    return LoadedModel(
        module=module,
        config=module.config,
        tokenizer=assemble.tokenizer(path.parent, gguf_file=path.name),
        provenance={"source": text, "kind": SOURCE.kind, "sha256": sha256([path]), "bytes": path.stat().st_size},
    )


def _check(path: Path) -> None:
    """The file is GGUF and holds all the tensors its header promises."""
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise WeightsError(
            f"loading GGUF file {path}: it begins with {magic!r}, expected b'GGUF'; this is not a GGUF file"
        )
    import gguf

    try:
        gguf.GGUFReader(path)  # maps every tensor, so it fails where one reaches past the end of the file
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
