"""Every module of a model on its own inputs: the check that remains where rounding ties make whole runs diverge.

A mode that rounds activations puts a step at every tie. Two right implementations whose float32 sums differ in the last
bit fall on either side of some of them; the difference passes through every later layer and grows: PyTorch's own eager
float32 of the same emulation is nats away from its float64. No bound of a whole run says anything then.

Nothing of this happens inside one module. So float64 is restarted everywhere: what enters each linear layer, and each
decoder layer, is replaced by the value that the compiled model had there. The mode then rounds the same float32 numbers
to the same integers, and what leaves each module may differ by the roundings between two such points alone.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from assay.backends.protocol import LanguageModel, Point
from assay.tokens.layers import rounding_drift
from assay.tokens.reference import INPUT, Reference, watching
from assay.tokens.tolerance import UNIT_ROUNDOFF


@dataclass(frozen=True)
class Local:
    """One edge of a module: the worst row's error norm over what is allowed, and relative to the row's own norm."""

    point: str
    position: int
    error: float
    headroom: float
    made_by: str = ""  # operations between this edge and the ones before it
    source: str = ""

    def __str__(self) -> str:
        return "\n  ".join(
            (
                f"first    {self.point}, token {self.position}, made by {self.made_by}",
                f"error    {self.error:.1e} of the row, {self.headroom:.2f} × allowed",
                *([f"source   {self.source}"] if self.source else []),
            )
        )


@dataclass(frozen=True)
class LocalReport:
    """All edges that the compiled model shares with PyTorch's modules, in the order they run."""

    points: tuple[Local, ...]
    positions: int

    @property
    def worst(self) -> Local:
        return max(self.points, key=lambda point: point.headroom)

    @property
    def headroom(self) -> float:
        return self.worst.headroom

    @property
    def first_outside(self) -> Local | None:
        """The first edge outside its bound; what made it is at fault, since everything before was put right."""
        return next((point for point in self.points if not point.headroom <= 1), None)

    def __str__(self) -> str:
        worst = self.worst
        return (
            f"each module on the model's own inputs: {len(self.points)} edges over {self.positions} positions, worst "
            f"error/bound {worst.headroom:.3f} at {worst.point}, relative error {worst.error:.1e}"
        )


def local_report(reference: Reference, model: LanguageModel, ids: Sequence[int], quant: str) -> LocalReport:
    """Compare every edge of every module over ``ids`` with float64 restarted from the model's own values.

    Allowed is the norm of a row's drift when each linear layer is moved by its matmul bound, and beside it
    (2·√width + 8)·u of the row for norms, products and sums.
    """
    edges = [point.name for point in model.points() if _edge_of(reference, point.name)]
    got = model.trace(list(ids), edges)
    with forcing(reference, {name: got[edge] for name, edge in feeds(reference, edges).items()}):
        exact = next(reference.passes([ids], edges)).seen
        drift = rounding_drift(reference, ids, exact, quant)
    known = {point.name: point for point in model.points()}
    points = [_judged(known[name], want, drift[name], got[name]) for name, want in exact.items()]
    return LocalReport(tuple(points), len(ids))


def feeds(reference: Reference, edges: Collection[str]) -> dict[str, str]:
    """Where float64 is restarted: each linear and each decoder layer, with the edge whose value enters it."""
    linear = [name for name, module in reference.module.named_modules() if isinstance(module, torch.nn.Linear)]
    values: dict[str, torch.Tensor] = {}
    entering = {name: f"{name}{INPUT}" for name in (*reference.layers, *linear)}
    with watching(reference.module, {*edges, *entering.values()}, values.__setitem__):
        reference.last_logits([0])
    made = {id(values[edge]): edge for edge in edges}  # the same tensor, whatever module it is named after
    return {name: made[id(values[inside])] for name, inside in entering.items() if id(values[inside]) in made}


@contextmanager
def forcing(reference: Reference, values: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Put ``values`` [T, width] in the place of what enters the modules of these names, in a ``with`` block; in that of
    each sequence where several runs of the same ids are one batch.

    A hook that watches the same input sees what came, not what is put in its place.
    """
    handles = []
    for name, value in values.items():
        hook = functools.partial(_replaced, torch.from_numpy(value))
        handles.append(reference.module.get_submodule(name).register_forward_pre_hook(hook, prepend=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replaced(value: torch.Tensor, _owner: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    sequences = inputs[0].numel() // value.numel()
    return (value.to(inputs[0].dtype).repeat(sequences, 1).reshape(inputs[0].shape), *inputs[1:])


def _edge_of(reference: Reference, name: str) -> bool:
    try:
        return bool(reference.module.get_submodule(name.removesuffix(INPUT)))
    except AttributeError:
        return False


def _judged(point: Point, want: np.ndarray, drift: np.ndarray, got: np.ndarray) -> Local:
    size = np.linalg.norm(want, axis=1)
    error = np.linalg.norm(got.astype(np.float64) - want, axis=1)
    allowed = drift + (2 * want.shape[1] ** 0.5 + 8) * UNIT_ROUNDOFF["fp32"] * size
    ratio = np.where(error > 0, error / np.maximum(allowed, np.finfo(np.float64).tiny), 0.0)
    ratio = np.where(np.isfinite(error), ratio, np.inf)
    row = int(ratio.argmax())
    relative = float(error[row] / max(size[row], np.finfo(np.float64).tiny))
    return Local(point.name, row, relative, float(ratio[row]), ", ".join(point.ops), point.source)
