"""Weights from a Hugging Face folder: ``config.json`` beside one or many memory-mapped safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from anvil.errors import WeightsError
from anvil.models import assemble
from anvil.models.base import LoadedModel, Source, sha256

INDEX = "model.safetensors.index.json"


def load(text: str, dtype: torch.dtype) -> LoadedModel:
    """Load a folder. Raises :class:`WeightsError` when config, weights or a shard are missing or do not fit."""
    folder = Path(text)
    what = f"Hugging Face folder {folder}"
    if not (folder / "config.json").is_file():
        raise WeightsError(f"loading {what}: config.json is missing; expected config.json and *.safetensors")
    shards = _shards(folder, what)
    module = assemble.causal_lm(folder, dtype, what=what)
    return LoadedModel(
        module=module,
        config=module.config,
        tokenizer=assemble.tokenizer(folder),
        provenance={
            "source": text,
            "kind": SOURCE.kind,
            "sha256": sha256([folder / "config.json", *shards]),
            "bytes": sum(shard.stat().st_size for shard in shards),
        },
    )


def _shards(folder: Path, what: str) -> list[Path]:
    """The safetensors files, all of them there and none shorter than its header says."""
    if (folder / INDEX).is_file():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise WeightsError(
                f"loading {what}: shard={missing[0]} named in {INDEX} is missing ({len(missing)} of {len(names)}); "
                "get the complete checkpoint"
            )
        shards = [folder / name for name in names]
    else:
        shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise WeightsError(f"loading {what}: holds no weights; expected *.safetensors files beside config.json")
    for shard in shards:
        _check_length(shard, what)
    return shards


def _check_length(shard: Path, what: str) -> None:
    """Compare the file's size with what its safetensors header promises."""
    nbytes = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length < nbytes else {}
            end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        except ValueError as error:  # covers broken JSON, and a header without tensors
            raise WeightsError(f"loading {what}: shard={shard.name} is not a safetensors file") from error
    want = 8 + length + end
    if nbytes < want:
        raise WeightsError(
            f"loading {what}: shard={shard.name} bytes={nbytes}, expected {want}; the file is truncated, "
            "download it again"
        )


SOURCE = Source(
    kind="hf_folder",
    syntax="path/to/folder",
    matches=lambda text: Path(text).is_dir(),
    load=load,
)
