"""Symbolic sizes: PyTorch's SymInts as sympy expressions, and what can be proved about them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch

from anvil.runtime.plan import Size, View


def to_size(value: int | torch.SymInt, fixed: Mapping[str, int] | None = None) -> Size:
    """A plan's size for ``value``: an int, or a sympy expression over the names of the program's symbols.

    ``fixed`` replaces symbols, by name, with the values they are specialised to.
    """
    if isinstance(value, int):
        return value
    return substitute(value.node.expr, fixed or {})


def substitute(size: Size, fixed: Mapping[str, int]) -> Size:
    """``size`` with the named symbols replaced by numbers; an int where nothing symbolic is left."""
    if isinstance(size, int):
        return size
    known = {symbol: sympy.Integer(fixed[symbol.name]) for symbol in size.free_symbols if symbol.name in fixed}
    return simplify(size.subs(known) if known else size)


def simplify(size: Size) -> Size:
    """The same value, as an int where it is one."""
    if isinstance(size, int):
        return size
    return int(size) if size.is_Integer else size


@functools.lru_cache(maxsize=65536)
def _same(a: Size, b: Size) -> bool:
    return sympy.expand(sympy.sympify(a) - sympy.sympify(b)) == 0


def same(a: Size, b: Size) -> bool:
    """Whether ``a`` and ``b`` are provably equal for every value of their symbols. False when in doubt."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or _same(a, b)


def product(sizes: Iterable[Size]) -> Size:
    """The product, as an int where it is one."""
    total: Size = 1
    for size in sizes:
        total = simplify(total * size)
    return total


def dense_strides(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides, in elements."""
    return tuple(product(sizes[axis + 1 :]) for axis in range(len(sizes)))


def dense_order(sizes: Sequence[Size], strides: Sequence[Size]) -> tuple[int, ...] | None:
    """The axes from outermost to innermost, if they tile memory without gap or overlap; else None.

    Axes of size 1 take the place that keeps the order as close to row-major as it can be.
    """
    left = [axis for axis in range(len(sizes)) if not same(sizes[axis], 1)]
    inner: list[int] = []
    expected: Size = 1
    while left:
        found = next((axis for axis in reversed(left) if same(strides[axis], expected)), None)
        if found is None:
            return None
        left.remove(found)
        inner.append(found)
        expected = simplify(expected * sizes[found])
    order = inner[::-1]
    for axis in range(len(sizes)):
        if axis not in order:
            after = [position for position, other in enumerate(order) if other < axis]
            order.insert(after[-1] + 1 if after else 0, axis)
    return tuple(order)


def is_dense(view: View) -> bool:
    """Whether ``view`` is row-major without gaps, provably."""
    return all(
        same(size, 1) or same(stride, dense)
        for size, stride, dense in zip(view.sizes, view.strides, dense_strides(view.sizes), strict=True)
    )


def reshaped_strides(sizes: Sequence[Size], strides: Sequence[Size], shape: Sequence[Size]) -> tuple[Size, ...] | None:
    """Strides under which the same elements, in row-major order, have ``shape``; None if none exist, or in doubt.

    ``shape`` must have as many elements as ``sizes``. Old axes are merged into runs that are contiguous in memory,
    from the innermost outwards, and each run is cut into new axes; a new axis may not cross two runs.
    """
    new: list[Size] = []
    left = list(shape)
    axis = len(sizes)
    while axis > 0:
        axis -= 1
        run, step = sizes[axis], strides[axis]
        while axis > 0 and (same(sizes[axis - 1], 1) or same(run, 1) or same(strides[axis - 1], simplify(run * step))):
            axis -= 1
            if same(run, 1):
                step = strides[axis]
            run = simplify(run * sizes[axis])
        cut = _cut(run, step, left)
        if cut is None:
            return None
        new = cut + new
    if not all(same(size, 1) for size in left):
        return None
    return (*[1 for _ in left], *new)


def _cut(run: Size, step: Size, shape: list[Size]) -> list[Size] | None:
    """Strides of the innermost axes of ``shape`` that make up ``run`` elements; takes them off ``shape``."""
    strides: list[Size] = []
    taken: Size = 1
    while not same(taken, run) or (shape and same(shape[-1], 1)):
        if not shape:
            return None
        strides.insert(0, simplify(taken * step))
        taken = simplify(taken * shape.pop())
    return strides


def broadcast_stride(size: Size, stride: Size, wanted: Size) -> Size:
    """The stride that reads ``size`` elements as ``wanted``: 0 where size is 1, also if only run time tells."""
    if same(size, wanted):
        return stride
    if same(size, 1):
        return 0
    return sympy.Piecewise((0, sympy.Eq(size, 1)), (stride, True))


def broadcast_size(sizes: Iterable[Size]) -> Size:
    """The size that dimensions of these sizes broadcast to: the first that is not 1."""
    return next((size for size in sizes if not same(size, 1)), 1)
