"""The tensors of a model by parameter name, read when they are packed and not before, some rows at a time."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from anvil.errors import WeightsError
from anvil.quant import Stored
from anvil.runtime.original import Original


@dataclass
class Weights:
    """What a source holds. ``fingerprint`` is cheap, and equal for equal contents; ``open`` and ``open_stored`` are
    called when tensors, or the matrices that lie quantised in the source, are first asked for."""

    fingerprint: str
    open: Callable[[], Mapping[str, Original]]
    open_stored: Callable[[], Mapping[str, Stored]] = dict

    @functools.cached_property
    def originals(self) -> Mapping[str, Original]:
        """Every tensor, by parameter name."""
        return self.open()

    @functools.cached_property
    def stored(self) -> Mapping[str, Stored]:
        """Matrices that are quantised already, by parameter name."""
        return self.open_stored()


def fingerprint(paths: Iterable[Path], *more: str) -> str:
    """Hash of which files these are, without reading them: place, size, and when they were last changed.

    The time of a change is the kernel's own (``ctime``), which no program sets back.
    """
    digest = hashlib.sha256("\n".join(more).encode())
    for path in paths:
        found = path.stat()
        digest.update(f"{path.resolve()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n".encode())
    return digest.hexdigest()


def check_shapes(wanted: Mapping[str, tuple[int, ...]], held: Mapping[str, Original], what: str) -> None:
    """What is held has the shape that the configuration says. Raises :class:`WeightsError` naming the first that has
    not."""
    wrong = [name for name in sorted(wanted) if name in held and held[name].shape != wanted[name]]
    if wrong:
        raise WeightsError(
            f"loading {what}: {len(wrong)} weights do not fit the configuration; first: {wrong[0]} has "
            f"shape={held[wrong[0]].shape}, expected {wanted[wrong[0]]}; check that the weights and config.json belong "
            "together"
        )


def check_finite(name: str, values: torch.Tensor, what: str) -> None:
    """Raises :class:`WeightsError` where a weight is NaN or infinite: no answer of the model would mean anything."""
    if values.is_floating_point() and not bool(torch.isfinite(values.sum(dtype=torch.float32))):
        bad = ~torch.isfinite(values)
        if bool(bad.any()):
            raise WeightsError(
                f"loading {what}: weight={name} holds {int(bad.sum())} values that are NaN or infinite, the first at "
                f"{bad.nonzero()[0].tolist()}; the file is damaged, or was written by a run that diverged"
            )
