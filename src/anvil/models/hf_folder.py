"""Weights from a Hugging Face folder: ``config.json`` beside one or many memory-mapped safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anvil.errors import WeightsError
from anvil.models import assemble, counted
from anvil.models.base import LoadedModel, Source, ids_of, sha256
from anvil.models.safetensors_file import DTYPES, Entry, MappedFile, read_header
from anvil.models.weights import Weights, fingerprint
from anvil.runtime.original import Original

INDEX = "model.safetensors.index.json"


def load(text: str) -> LoadedModel:
    """Open a folder. Raises :class:`WeightsError` when config, weights or a shard are missing or do not fit."""
    folder = Path(text)
    what = f"Hugging Face folder {folder}"
    if not (folder / "config.json").is_file():
        raise WeightsError(f"loading {what}: config.json is missing; expected config.json and *.safetensors")
    settings = read_json(folder / "config.json", what)
    if (folder / counted.FILE).is_file():
        return counted.open_folder(folder, settings, what)
    shards = _shards(folder, what)
    headers = {shard: read_header(shard, what) for shard in shards}
    _check_types(headers, what)
    generation = read_json(folder / "generation_config.json", what) if _has(folder, "generation_config.json") else {}
    return LoadedModel(
        what=what,
        settings=settings,
        weights=Weights(fingerprint([folder / "config.json", *shards]), lambda: _mapped(headers)),
        load_module=lambda: assemble.causal_lm(folder, what=what),
        stop_ids=ids_of(generation.get("eos_token_id", settings.get("eos_token_id"))),
        load_tokenizer=lambda: assemble.tokenizer(folder),
        facts=lambda: {
            "source": text,
            "kind": SOURCE.kind,
            "sha256": sha256([folder / "config.json", *shards]),
            "bytes": sum(shard.stat().st_size for shard in shards),
        },
    )


def _mapped(headers: Mapping[Path, Mapping[str, Entry]]) -> dict[str, Original]:
    """The tensors of all shards. Nothing is read before it is asked for, and nothing is copied."""
    found: dict[str, Original] = {}
    for shard, entries in headers.items():
        found |= MappedFile(shard, entries).originals()
    return found


def read_json(file: Path, what: str) -> dict[str, Any]:
    """A JSON file that holds an object. Raises :class:`WeightsError`."""
    try:
        found = json.loads(file.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise WeightsError(f"loading {what}: {file.name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"loading {what}: {file.name} holds a {type(found).__name__}, expected an object")
    return found


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _shards(folder: Path, what: str) -> list[Path]:
    """The safetensors files, all of them there."""
    if _has(folder, INDEX):
        names = sorted(set(read_json(folder / INDEX, what).get("weight_map", {}).values()))
        missing = [name for name in names if not _has(folder, name)]
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
    return shards


def _check_types(headers: Mapping[Path, Mapping[str, Entry]], what: str) -> None:
    for shard, entries in headers.items():
        for name, entry in entries.items():
            if entry.dtype not in DTYPES:
                raise WeightsError(
                    f"loading {what}: weight={name} in shard={shard.name} has dtype={entry.dtype}, expected one of "
                    f"{', '.join(DTYPES)}; convert the checkpoint, or quantise it with --quant"
                )


SOURCE = Source(
    kind="hf_folder",
    syntax="path/to/folder",
    matches=lambda text: Path(text).is_dir(),
    load=load,
)
