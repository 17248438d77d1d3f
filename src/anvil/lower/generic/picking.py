"""Elements picked by formulas: each index of the source follows from where the result's element stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from anvil.lower.generic.num import Num, select
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.values import Tensor
from anvil.mlir import arith
from anvil.runtime.plan import Size, View


@dataclass(frozen=True)
class Formula:
    """An index as a function of the places along dimensions ``dims`` of the result and of ``sizes``: i64 Nums."""

    dims: tuple[int, ...]
    body: Callable[..., Num]
    sizes: tuple[Size, ...] = ()

    def value(self, region: Region, shape: Sequence[Size], dtype: str = "i64") -> Value:
        """What the formula gives at each place of ``shape``; it is never in memory."""
        places = [along(shape, dim) for dim in self.dims]
        numbers = [region.scalar(size, "i64") for size in self.sizes]
        own = tuple(size if dim in self.dims else 1 for dim, size in enumerate(shape))
        return region.map(self.body, [*places, *numbers], own, dtype)


Index = Formula | int
"""An index into the source; a number means the place along that dimension of the result."""


@dataclass(frozen=True)
class Picked:
    """``value``: the elements; ``indices``: the value of every formula, None for plain dimensions."""

    value: Value
    indices: tuple[Value | None, ...]
    source: Operand

    def inside(self, region: Region, shape: Sequence[Size]) -> Value | None:
        """Whether the indices exist; None where no formula could say otherwise."""
        pairs = [(i, n) for i, n in zip(self.indices, self.source.shape, strict=True) if i is not None]
        if not pairs:
            return None
        sizes = [region.scalar(size, "i64") for _, size in pairs]

        def element(*numbers: Num) -> Num:
            indices, limits = numbers[: len(pairs)], numbers[len(pairs) :]
            return reduce(and_, [(i >= 0) & (i < n) for i, n in zip(indices, limits, strict=True)])

        return region.map(element, [*(i for i, _ in pairs), *sizes], _extent(pairs, shape), "i1", cheap=True)


def pick(region: Region, source: Operand, shape: Sequence[Size], where: Sequence[Index]) -> Picked:
    """``source`` at the indices ``where``, one per dimension of it. What is outside is moved to the nearest element."""
    indices = tuple(i.value(region, shape) if isinstance(i, Formula) else None for i in where)
    given = [i if isinstance(i, int) else value for i, value in zip(where, indices, strict=True)]
    return Picked(region.gather(source, given, shape), indices, source)  # type: ignore[arg-type]


def pick_or(region: Region, source: Operand, shape: Sequence[Size], where: Sequence[Index], fill: float) -> Value:
    """The same with ``fill`` for what is outside."""
    picked = pick(region, source, shape, where)
    return filled(region, picked, shape, fill)


def filled(region: Region, picked: Picked, shape: Sequence[Size], fill: float) -> Value:
    """The picked elements; ``fill`` where an index does not exist."""
    inside = picked.inside(region, shape)
    if inside is None:
        return picked.value
    dtype = picked.value.dtype
    own = _extent([(picked.value, 0), (inside, 0)], shape)
    body = lambda x, ok: select(ok, x, x.const(fill))  # noqa: E731
    return region.map(body, [picked.value, inside], own, dtype, cheap=True).remap(list(range(len(shape))), shape)


def along(shape: Sequence[Size], dim: int) -> Tensor:
    """The place along dimension ``dim`` of ``shape``, of size 1 in the others."""
    sizes = tuple(size if i == dim else 1 for i, size in enumerate(shape))
    return Tensor(View("", 0, sizes, tuple(int(i == dim) for i in range(len(shape)))), "i64", lambda place: place)


def quotient_by_size(x: Num, y: Num | int) -> Num:
    """x / y of integers, towards zero. One instruction, which traps on 0: y must be a size or a number that is not zero
    where an element is computed; ``num.safe_quotient`` takes any divisor."""
    other = y if isinstance(y, Num) else x.const(y)
    return Num(arith.divsi(x.ssa, other.ssa), x.dtype)


def rest_by_size(x: Num, y: Num | int) -> Num:
    """x - y · quotient_by_size(x, y)."""
    other = y if isinstance(y, Num) else x.const(y)
    return Num(arith.remsi(x.ssa, other.ssa), x.dtype)


def join_loops(region: Region, left: Value, right: Value) -> None:
    """Let two values of equal rank follow the same loops, dimension by dimension. Raises Misfit."""
    for a, b in zip(left.axes, right.axes, strict=True):
        if a is not None and b is not None:
            region.join(a, b)


def _extent(pairs: Sequence[tuple[Value, Size]], shape: Sequence[Size]) -> tuple[Size, ...]:
    """``shape`` with size 1 where none of the indices varies."""
    varies = [any(value.axes[dim] is not None for value, _ in pairs) for dim in range(len(shape))]
    return tuple(size if moves else 1 for size, moves in zip(shape, varies, strict=True))
