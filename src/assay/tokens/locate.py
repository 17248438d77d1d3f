"""Where a wrong model goes wrong: the first layer, token and operation whose value leaves its bound.

The compiled model is traced at the points it shares with PyTorch's own run: first at the end of every layer, then,
inside the first layer that is outside its bound, at every module's edge. Points are independent of the compiler's
graph: PyTorch's values come from hooks on the model's own modules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from assay.backends.protocol import LanguageModel, Point
from assay.tokens.layers import rounding_drift
from assay.tokens.reference import Reference
from assay.tokens.tolerance import UNIT_ROUNDOFF, mode


@dataclass(frozen=True)
class Place:
    """The first value outside its bound. ``error`` and ``allowed`` are norms of the row, relative to the row's own."""

    layer: str
    point: str
    ops: tuple[str, ...]
    source: str
    position: int
    error: float
    allowed: float
    cached: bool

    def __str__(self) -> str:
        way = "in the token loop (the same ids without a cache are right)" if self.cached else "without a cache"
        point = f"what enters {self.point.removesuffix(':in')}" if self.point.endswith(":in") else self.point
        return "\n".join(
            (
                f"first outside its bound: {self.layer}, token {self.position}, {way}",
                f"  op       {', '.join(self.ops)}, which makes {point}",
                f"  error    {self.error:.1e} of the row, allowed {self.allowed:.1e}",
                *([f"  source   {self.source}"] if self.source else []),
            )
        )


def locate(reference: Reference, model: LanguageModel, ids: Sequence[int], prompt: int, quant: str) -> Place | None:
    """The first place outside its bound while the model sees ``ids``, of which ``prompt`` are the prompt.

    Without a cache first; if that is right, in the token loop. None when every layer is inside its bound both times:
    then the fault lies behind the last layer, or in the choice of the token.
    """
    for feed in (None, prompt):
        points = {point.name: point for point in model.points(cached=feed is not None)}
        layers = [name for name in reference.layers if name in points]
        found = _first(reference, model, list(ids), layers, feed, quant)
        if found is None:
            continue
        layer, row, error, allowed = found
        seen = list(ids[: row + 1])
        inner = [name for name in points if name == layer or name.startswith(f"{layer}.")]
        inside = _first(reference, model, seen, inner, feed and min(feed, row + 1), quant, only=[row])
        name, _, error, allowed = inside or (layer, row, error, allowed)
        return Place(
            layer=layer,
            point=name,
            ops=_suspects(points[name], model if feed is not None else None),
            source=points[name].source,
            position=row,
            error=error,
            allowed=allowed,
            cached=feed is not None,
        )
    return None


def _first(
    reference: Reference,
    model: LanguageModel,
    ids: list[int],
    names: Sequence[str],
    prompt: int | None,
    quant: str,
    only: Collection[int] = (),
) -> tuple[str, int, float, float] | None:
    """The first of ``names`` with a row outside its bound, that row, its relative error and what is allowed."""
    exact = next(reference.passes([ids], names)).seen
    drift = rounding_drift(reference, ids, exact, quant)
    got = model.trace(ids, names, prompt=prompt)
    for name in names:
        size = np.linalg.norm(exact[name], axis=1)
        error = np.linalg.norm(got[name].astype(np.float64) - exact[name], axis=1)
        allowed = drift[name] + _rounding(exact[name].shape[1], quant) * size
        outside = ~(error <= allowed)
        rows = [row for row in only or range(len(ids)) if outside[row]]
        if rows:
            row = rows[0]
            return name, row, float(error[row] / size[row]), float(allowed[row] / size[row])
    return None


def _rounding(width: int, quant: str) -> float:
    """Relative error that norms, products and sums may add beside linear layers: (½·c·√width + 8)·u with c = 4."""
    return (2 * width**0.5 + 8) * UNIT_ROUNDOFF[mode(quant).stream]


def _suspects(point: Point, whole: LanguageModel | None) -> tuple[str, ...]:
    """The operations behind ``point``; those that were right without a cache are cleared of suspicion."""
    if whole is None:
        return point.ops
    cleared = next((each.ops for each in whole.points() if each.name == point.name), ())
    return tuple(op for op in point.ops if op not in cleared) or point.ops
