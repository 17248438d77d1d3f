"""Images at other sizes, or at places that a grid names: nearest neighbours and linear interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num, const, function, minimum, select
from anvil.lower.generic.ops.reduction import accumulator
from anvil.lower.generic.picking import Formula, Index, pick
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Value

aten = torch.ops.aten


def _ratio(size: Num, new: Num, scale: float | None, dtype: str) -> Num:
    """Steps in the source per step in the result: the inverse of the scale given, else the ratio of the sizes."""
    return size.to(dtype) / new.to(dtype) if scale is None else const(1.0 / scale, dtype)


def _scales(call: Call, spatial: int) -> list[float | None]:
    """The factors the caller gave, one per dimension, or None."""
    if "scale_factors" in call.arguments:
        given = call["scale_factors"]
        return [None] * spatial if given is None else list(given)
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[spatial]
    return [call.arguments.get(name) for name in names]


def _nearest(spatial: int, offset: float = 0.0) -> Build:
    """Element floor((i + offset) · ratio), in f32 (f64 for f64)."""

    def build(region: Region, call: Call) -> Value:
        source, rank = call[_input(call)], len(call.shape)
        scales = _scales(call, spatial)
        wide = "f64" if source.dtype == "f64" else "f32"

        def formula(position: int) -> Index:
            dim = rank - spatial + position

            def body(i: Num, size: Num, new: Num) -> Num:
                place = (i.to(wide) + offset) * _ratio(size, new, scales[position], wide)
                return minimum(function("floor", place).to("i64"), size - 1)

            return Formula((dim,), body, (source.shape[dim], call.shape[dim]))

        where = [*range(rank - spatial), *map(formula, range(spatial))]
        return pick(region, source, call.shape, where).value

    return build


def _input(call: Call) -> str:
    return "input" if "input" in call.arguments else "self"


def _linear(spatial: int) -> Build:
    """Between the two nearest elements along each of the last ``spatial`` dimensions."""

    def build(region: Region, call: Call) -> Value:
        source, rank = call[_input(call)], len(call.shape)
        scales, corners = _scales(call, spatial), call["align_corners"]
        wide = accumulator(source.dtype)
        dims = [rank - spatial + position for position in range(spatial)]

        def place(position: int) -> Callable[..., Num]:
            def body(i: Num, size: Num, new: Num) -> Num:
                if corners:
                    steps = select(new > 1, new - 1, new.const(1)).to(wide)
                    ratio = select(new > 1, (size - 1).to(wide) / steps, steps.const(0))
                    return i.to(wide) * ratio
                found = (i.to(wide) + 0.5) * _ratio(size, new, scales[position], wide) - 0.5
                return select(found < 0, found.const(0), found)

            return body

        def low(position: int) -> Formula:
            body = place(position)
            return Formula(
                (dims[position],),
                lambda i, size, new: minimum(body(i, size, new).to("i64"), size - 1),
                (source.shape[dims[position]], call.shape[dims[position]]),
            )

        def high(position: int) -> Formula:
            inner = low(position)
            return Formula(
                inner.dims, lambda i, size, new: minimum(inner.body(i, size, new) + 1, size - 1), inner.sizes
            )

        def weight(position: int) -> Value:
            body, inner = place(position), low(position)
            formula = Formula(inner.dims, lambda *n: body(*n) - inner.body(*n).to(wide), inner.sizes)
            return formula.value(region, call.shape, wide)

        corners_of = [
            pick(region, source, call.shape, [*range(rank - spatial), *(f(p) for p, f in enumerate(choice))]).value
            for choice in _choices((low, high), spatial)
        ]
        weights = [weight(position) for position in range(spatial)]

        def element(*numbers: Num) -> Num:
            values = [number.to(wide) for number in numbers[: 2**spatial]]
            for share in reversed(numbers[2**spatial :]):
                pairs = zip(values[::2], values[1::2], strict=True)
                values = [a * (1.0 - share) + b * share for a, b in pairs]
            return values[0].to(call.dtype)

        return region.map(element, [*corners_of, *weights], call.shape, call.dtype)

    return build


def _choices(options: tuple[Any, Any], count: int) -> list[tuple[Any, ...]]:
    """All tuples of ``count`` options, the last one changing fastest."""
    found: list[tuple[Any, ...]] = [()]
    for _ in range(count):
        found = [(*before, option) for before in found for option in options]
    return found


def _overloads(names: Sequence[str], build: Build) -> dict[object, Build]:
    """``default`` and ``vec``, where PyTorch has them."""
    packets = [getattr(aten, name) for name in names]
    return {getattr(packet, o): build for packet in packets for o in packet.overloads() if o in ("default", "vec")}


OPS: dict[object, Build] = {
    **{op: build for n in (1, 2, 3) for op, build in _overloads([f"upsample_nearest{n}d"], _nearest(n)).items()},
    **{
        op: build
        for n in (1, 2, 3)
        for op, build in _overloads([f"_upsample_nearest_exact{n}d"], _nearest(n, 0.5)).items()
    },
    **_overloads(["upsample_linear1d"], _linear(1)),
    **_overloads(["upsample_bilinear2d"], _linear(2)),
    **_overloads(["upsample_trilinear3d"], _linear(3)),
}
