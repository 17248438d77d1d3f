"""Turns a model's ``source`` into a file or folder on this machine, checked before any long work starts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from assay.cache import cached
from assay.errors import WeightsError
from assay.tokens.spec import ModelSpec
from assay.tokens.synthetic import ON_DEMAND, synthetic_folder


def resolve(spec: ModelSpec, weights: str | None = None) -> Path:
    """The GGUF file or Hugging Face folder that holds the weights of ``spec``, or of ``weights`` when given.

    Raises :class:`WeightsError` when it is missing, cut short, or not a model.
    """
    if weights is not None:
        spec = replace(spec, source=weights)
    kind, _, rest = spec.source.partition(":")
    if kind == "synthetic":
        return synthetic_folder(spec.name, spec.config, int(rest), on_demand=spec.streamed)
    path = _package_file(spec, rest) if kind == "package" else Path(spec.source).expanduser()
    check(path)
    return path


def check(path: Path) -> None:
    """Raise :class:`WeightsError` unless ``path`` is a whole GGUF file or a Hugging Face folder with weights.

    Walking a GGUF file takes seconds, so the hash of one that was found whole is remembered.
    """
    if path.is_dir():
        _check_folder(path)
    elif path.is_file():
        if path.stat().st_size == 0:
            raise WeightsError(f"reading weights={path}: the file is empty; fetch it again")
        cached(f"checked/{weights_hash(path)}", lambda mark: mark.write_text(str(len(gguf_reader(path).tensors))))
    else:
        raise WeightsError(f"opening weights={path}: no such file or folder; give a GGUF file or a Hugging Face folder")


def gguf_reader(path: Path):
    """A ``gguf.GGUFReader`` of ``path``. Raises :class:`WeightsError` when the file is cut short or not GGUF."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, EOFError) as error:
        raise WeightsError(
            f"reading weights={path} ({path.stat().st_size} bytes): cut short or not a GGUF file ({error}); "
            "fetch it again"
        ) from error


def weights_hash(path: Path) -> str:
    """sha256 over the GGUF file, or over config.json and the safetensors files of a folder in sorted order."""
    files = (
        [path] if path.is_file() else [path / "config.json", *sorted(path.glob("*.safetensors")), *path.glob(ON_DEMAND)]
    )
    return _hash_of(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=8)
def _hash_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, _size, _time in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _package_file(spec: ModelSpec, rest: str) -> Path:
    package, _, file = rest.partition("/")
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found else []
    for folder in folders:
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    raise WeightsError(
        f"model={spec.name} needs {file} of the Python package {package}: {spec.install or 'install it'}"
    )


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise WeightsError(f"opening weights={folder}: no config.json; expected a Hugging Face folder")
    if (folder / ON_DEMAND).is_file():
        return
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        shards = [file.name for file in folder.glob("*.safetensors")]
    if not shards:
        raise WeightsError(f"opening weights={folder}: no *.safetensors; expected the weights beside config.json")
    for shard in shards:
        _check_shard(folder / shard)


def _check_shard(file: Path) -> None:
    """A safetensors file is 8 bytes of header length, the header, and the tensors it promises."""
    if not file.is_file():
        raise WeightsError(f"opening weights={file.parent}: shard {file.name} is missing; fetch it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or header_bytes > size - 8:
            raise WeightsError(f"reading shard={file} ({size} bytes): cut short inside its header; fetch it again")
        try:
            header = json.loads(stream.read(header_bytes))
        except ValueError as error:
            raise WeightsError(f"reading shard={file}: its header is not JSON; expected a safetensors file") from error
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    expected = 8 + header_bytes + end
    if size < expected:
        raise WeightsError(f"reading shard={file}: {size} bytes, expected {expected}: cut short; fetch it again")
