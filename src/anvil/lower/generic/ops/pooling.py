"""Pooling: means and maxima of windows that slide over the last dimensions, or share them out evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch

from anvil.lower.generic import num
from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num, compare, highest, lowest, maximum, minimum, select
from anvil.lower.generic.ops.reduction import accumulator
from anvil.lower.generic.picking import Formula, Picked, filled, pick, quotient_by_size
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.sizes import simplify
from anvil.runtime.plan import Size

aten = torch.ops.aten


@dataclass(frozen=True)
class Windows:
    """The windows of the last ``spatial`` dimensions. ``where[i]`` is the place of an element of a window, ``sizes[i]``
    the largest extent; ``shape`` is the result's with the extents after it."""

    where: tuple[Formula, ...]
    sizes: tuple[Size, ...]
    shape: tuple[Size, ...]

    @property
    def extents(self) -> range:
        return range(len(self.shape) - len(self.sizes), len(self.shape))

    def gathered(self, region: Region, source: Operand, fill: float) -> tuple[Value, Picked]:
        """The elements [*result, *extents], ``fill`` for those that do not exist; and without."""
        outer = range(len(source.shape) - len(self.sizes))
        picked = pick(region, source, self.shape, [*outer, *self.where])
        return filled(region, picked, self.shape, fill), picked


def _sliding(call: Call, spatial: int) -> Windows:
    """Windows of ``kernel_size``, ``stride`` apart, over a border of ``padding``, their elements ``dilation`` apart."""
    rank = len(call.shape)
    kernel = _each(call["kernel_size"], spatial)
    stride = _each(call["stride"] or call["kernel_size"], spatial)
    padding = _each(call["padding"], spatial)
    dilation = _each(call.arguments.get("dilation") or [1], spatial)

    def formula(dim: int) -> Formula:
        numbers = (stride[dim], dilation[dim], padding[dim])
        return Formula((rank - spatial + dim, rank + dim), lambda o, k, s, d, p: o * s + k * d - p, numbers)

    return Windows(tuple(map(formula, range(spatial))), tuple(kernel), (*call.shape, *kernel))


def _shared(call: Call, spatial: int) -> Windows:
    """Window i of O over I elements is [floor(i·I/O), ceil((i + 1)·I/O)); what is beyond its end stands at -1."""
    rank, source = len(call.shape), call["self"].shape
    pairs = [(source[rank - spatial + dim], call.shape[rank - spatial + dim]) for dim in range(spatial)]

    def body(o: Num, k: Num, i: Num, n: Num) -> Num:
        place = quotient_by_size(o * i, n) + k
        return select(place < quotient_by_size((o + 1) * i + n - 1, n), place, o.const(-1))

    where = (Formula((rank - spatial + dim, rank + dim), body, pairs[dim]) for dim in range(spatial))
    sizes = tuple(_ceil_ratio(i, n) + 1 for i, n in pairs)
    return Windows(tuple(where), sizes, (*call.shape, *sizes))


def _ceil_ratio(i: Size, n: Size) -> Size:
    return simplify(sympy.floor((sympy.sympify(i) + n - 1) / n))


def _each(values: Sequence[int], spatial: int) -> list[int]:
    return list(values) * spatial if len(values) == 1 else list(values)


def _largest(region: Region, source: Operand, windows: Windows, shape: Sequence[Size]) -> tuple[Value, Value]:
    """The maximum of each window and its place among the source's last dimensions: NaN before everything, of equals
    the first, but of several NaN the last."""
    rank, spatial, dtype = len(shape), len(windows.sizes), source.dtype
    elements, picked = windows.gathered(region, source, lowest(source.dtype))
    inside, place = picked.inside(region, windows.shape), picked.indices[-spatial:]
    elements = region.convert(elements, accumulator(dtype))  # 16-bit floats are not compared as they are
    over = list(windows.extents)
    best = region.reduce("max", [elements], over, keepdim=True)
    limits = [region.scalar(source.shape[rank - spatial + dim], "i64") for dim in range(1, spatial)]

    def candidate(x: Num, top: Num, ok: Num, *numbers: Num) -> Num:
        at = numbers[0]
        for i, n in zip(numbers[1:spatial], numbers[spatial:], strict=True):
            at = at * n + i
        found = select(compare("eq", x, top), at, at.const(highest("i64")))
        if x.is_float:
            found = select(compare("ne", x, x), at.const(-1) - at, found)
        return select(ok, found, at.const(highest("i64")))

    candidates = region.map(candidate, [elements, best, inside, *place, *limits], windows.shape, "i64")
    first = region.reduce("min", [candidates], over, keepdim=True)
    at = region.map(lambda i: select(i < 0, i.const(-1) - i, i), [first], first.shape, "i64")
    kept = list(range(rank))
    return region.convert(best, dtype).remap(kept, shape), at.remap(kept, shape)


def _max_pool(spatial: int) -> Build:
    return lambda region, call: _largest(region, call["self"], _sliding(call, spatial), call.shape)


def _adaptive_max_pool(spatial: int) -> Build:
    return lambda region, call: _largest(region, call["self"], _shared(call, spatial), call.shape)


def _average(region: Region, call: Call, windows: Windows, count: Value) -> Value:
    """The sum of each window over ``count``, which has the rank of the result."""
    wide = accumulator(call.dtype)
    elements, _ = windows.gathered(region, call["self"], 0)
    total = region.reduce("sum", [region.convert(elements, wide)], list(windows.extents))

    def element(total: Num, count: Num) -> Num:
        if total.is_float:
            return (total / count.to(wide)).to(call.dtype)
        # Lanes past the end of the result count windows that do not exist: none may be divided by 0 there.
        return num.safe_quotient(total.to("i64"), count).to(call.dtype)

    return region.map(element, [total, count], call.shape, call.dtype)


def _counted(region: Region, call: Call, spatial: int) -> Value:
    """How many elements a sliding window's sum is divided by."""
    rank = len(call.shape)
    kernel, padding = (_each(call[name], spatial) for name in ("kernel_size", "padding"))
    stride = _each(call["stride"] or call["kernel_size"], spatial)
    if call["divisor_override"] is not None:
        return region.scalar(call["divisor_override"], "i64")

    def body(o: Num, s: Num, k: Num, p: Num, n: Num) -> Num:
        start = o * s - p
        if call["count_include_pad"]:
            return minimum(start + k, n + p) - start
        return minimum(start + k, n) - maximum(start, 0)

    return _product(region, call, spatial, [
        Formula((dim,), body, (stride[i], kernel[i], padding[i], call["self"].shape[dim]))
        for i, dim in enumerate(range(rank - spatial, rank))
    ])  # fmt: skip


def _product(region: Region, call: Call, spatial: int, formulas: Sequence[Formula]) -> Value:
    counts = [formula.value(region, call.shape) for formula in formulas]
    rank = len(call.shape)
    shape = tuple(size if dim >= rank - spatial else 1 for dim, size in enumerate(call.shape))

    def element(*numbers: Num) -> Num:
        total = numbers[0]
        for number in numbers[1:]:
            total = total * number
        return total

    return region.map(element, counts, shape, "i64")


def _average_pool(spatial: int) -> Build:
    def build(region: Region, call: Call) -> Value:
        call.arguments.setdefault("divisor_override", None)
        return _average(region, call, _sliding(call, spatial), _counted(region, call, spatial))

    return build


def _adaptive_average_pool(spatial: int) -> Build:
    def build(region: Region, call: Call) -> Value:
        rank, source = len(call.shape), call["self"].shape

        def body(o: Num, i: Num, n: Num) -> Num:
            return quotient_by_size((o + 1) * i + n - 1, n) - quotient_by_size(o * i, n)

        formulas = [Formula((dim,), body, (source[dim], call.shape[dim])) for dim in range(rank - spatial, rank)]
        return _average(region, call, _shared(call, spatial), _product(region, call, spatial, formulas))

    return build


OPS: dict[object, Build] = {
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool3d_with_indices.default: _max_pool(3),
    aten.adaptive_max_pool2d.default: _adaptive_max_pool(2),
    aten.adaptive_max_pool3d.default: _adaptive_max_pool(3),
    aten.avg_pool1d.default: _average_pool(1),
    aten.avg_pool2d.default: _average_pool(2),
    aten.avg_pool3d.default: _average_pool(3),
    aten.adaptive_avg_pool1d.default: _adaptive_average_pool(1),
    aten._adaptive_avg_pool2d.default: _adaptive_average_pool(2),
    aten._adaptive_avg_pool3d.default: _adaptive_average_pool(3),
}
