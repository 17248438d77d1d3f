"""The loop nest of a region: loops in memory order, adjacent ones merged, one of them chosen for the vector lanes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Step
from anvil.lower.sizes import product, same, simplify
from anvil.runtime.plan import Size, View

Access = Literal["unit", "uniform", "any"]


@dataclass(frozen=True)
class Nest:
    """A region with its loops in their final order: the parallel ones first, outermost first, then the reduced ones.

    ``stores`` are the steps written to memory and ``targets`` where, one size and stride per loop of the step.
    ``vector`` is the loop whose elements lie in vector lanes; None if there is no loop.
    """

    sizes: tuple[Size, ...]
    reduced: frozenset[int]
    steps: tuple[Step, ...]
    stores: tuple[int, ...]
    targets: tuple[View, ...]
    vector: int | None

    def signature(self) -> Hashable:
        """What distinguishes the code of two nests whose steps have the same bodies."""
        steps = [
            (step.kind, step.dtype, step.loops, step.operands, step.combine, _literal(step), self._step_access(step))
            for step in self.steps
        ]
        written = zip(self.stores, self.targets, strict=True)
        stores = [(store, self.access(self.steps[store].loops, target)) for store, target in written]
        return len(self.sizes), self.reduced, self.vector, tuple(steps), tuple(stores)

    def _step_access(self, step: Step) -> Hashable:
        if step.view is None:
            return None
        if step.kind == "gather":
            dense = bool(step.view.strides) and same(step.view.strides[-1], 1)  # part of the argument's type
            return len(step.view.sizes), dense, self.gather_access(step)
        return self.access(step.loops, step.view)

    def access(self, loops: Sequence[int], view: View) -> Access:
        """How the lanes of one vector lie in memory: side by side, all on one element, or anyhow."""
        if self.vector not in loops:
            return "uniform"
        return "unit" if same(view.strides[loops.index(self.vector)], 1) else "any"

    def gather_access(self, step: Step) -> Access:
        """The same of a gather: side by side if only its last index moves, with the loop itself."""
        *outer, last = (self.steps[operand] for operand in step.operands)
        if self.vector not in step.loops:
            return "uniform"
        assert step.view is not None
        moves = last.kind == "iota" and not any(self.vector in index.loops for index in outer)
        return "unit" if moves and same(step.view.strides[-1], 1) else "any"


def _literal(step: Step) -> int | float | None:
    """The number of a scalar that is part of the code."""
    return step.size if step.kind == "scalar" and isinstance(step.size, (int, float)) else None


def arrange(region: Region, stores: Sequence[int], targets: Sequence[View]) -> Nest:
    """Order, merge and choose. ``targets`` have one size and stride per loop of the stored step, ascending."""
    reduced, found = region.reduced, region.finished()
    views = [(step.loops, step.view) for step in found if step.kind == "input" and step.view]
    written = [(found[step].loops, target) for step, target in zip(stores, targets, strict=True)]
    order = _order({loop for step in found for loop in step.loops}, reduced, views, written)
    counted = {loop for step in found if step.kind == "iota" for loop in step.loops}
    groups = _merge(region, order, counted, views + written)
    steps = tuple(_renumber(step, groups) for step in found)
    moved = [_move(loops, view, groups) for loops, view in written]
    nest = Nest(
        sizes=tuple(product(region.size(axis) for axis in group) for group in groups),
        reduced=frozenset(_positions(tuple(reduced), groups)),
        steps=steps,
        stores=tuple(stores),
        targets=tuple(moved),
        vector=None,
    )
    return replace(nest, vector=_vector_loop(nest))


Operands = list[tuple[tuple[int, ...], View]]


def _order(used: set[int], reduced: frozenset[int], read: Operands, written: Operands) -> list[int]:
    """Loops as they lie in memory in the largest operand, what is written before what is read; reduced ones last."""
    key: list[int] = []
    for loops, view in sorted(written, key=_rank) + sorted(read, key=_rank):
        fresh = [loop for loop in _by_stride(loops, view) if loop not in key]
        key += fresh
    key += sorted(used - set(key))
    return [axis for axis in key if axis not in reduced] + [axis for axis in key if axis in reduced]


def _rank(operand: tuple[tuple[int, ...], View]) -> int:
    return -len(operand[0])


def _by_stride(loops: tuple[int, ...], view: View) -> list[int]:
    """Loops with the largest stride first; where strides do not compare, the order of the loops stays."""
    ordered: list[int] = []
    for position, loop in enumerate(loops):
        at = len(ordered)
        while at > 0 and _larger(view.strides[position], view.strides[loops.index(ordered[at - 1])]):
            at -= 1
        ordered.insert(at, loop)
    return ordered


def _larger(a: Size, b: Size) -> bool:
    """Whether stride ``a`` is a proper multiple of stride ``b`` for all sizes."""
    if same(a, b) or same(b, 0) or same(a, 0):
        return False
    ratio = simplify(a / b) if not isinstance(a, int) or not isinstance(b, int) else a / b
    if isinstance(ratio, (int, float)):
        return ratio > 1
    return bool(ratio.is_integer)


def _merge(region: Region, order: list[int], counted: set[int], operands: Operands) -> list[list[int]]:
    """Runs of adjacent loops that every operand walks in one stride, or not at all. ``counted`` ones stay alone."""
    reduced = region.reduced
    groups: list[list[int]] = []
    for axis in order:
        last = groups[-1][-1] if groups else None
        joins = (
            last is not None
            and (last in reduced) == (axis in reduced)
            and not {last, axis} & counted
            and all(_one_stride(loops, view, last, axis, region.size(axis)) for loops, view in operands)
        )
        if joins:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _one_stride(loops: tuple[int, ...], view: View, outer: int, inner: int, size: Size) -> bool:
    if outer not in loops and inner not in loops:
        return True
    if outer not in loops or inner not in loops:
        return False
    outer_stride, inner_stride = view.strides[loops.index(outer)], view.strides[loops.index(inner)]
    return same(outer_stride, simplify(inner_stride * size))


def _renumber(step: Step, groups: list[list[int]]) -> Step:
    view = _move(step.loops, step.view, groups) if step.kind == "input" and step.view else step.view
    return replace(step, loops=_positions(step.loops, groups), view=view)


def _positions(loops: tuple[int, ...], groups: list[list[int]]) -> tuple[int, ...]:
    return tuple(position for position, group in enumerate(groups) if group[0] in loops)


def _move(loops: tuple[int, ...], view: View, groups: list[list[int]]) -> View:
    """``view`` with one size and stride per merged loop: the product of the sizes, the innermost stride."""
    present = [groups[position] for position in _positions(loops, groups)]
    sizes = tuple(product(view.sizes[loops.index(axis)] for axis in group) for group in present)
    return View(view.buffer, view.offset, sizes, tuple(view.strides[loops.index(group[-1])] for group in present))


def _vector_loop(nest: Nest) -> int | None:
    """The loop along which the fewest operands are scattered; of equals a parallel one, of those the innermost."""
    if not nest.sizes:
        return None
    operands = [(step.loops, step.view) for step in nest.steps if step.kind == "input" and step.view]
    operands += [(nest.steps[s].loops, target) for s, target in zip(nest.stores, nest.targets, strict=True)]

    def cost(loop: int) -> tuple[int, bool, int]:
        trial = replace(nest, vector=loop)
        scattered = sum(trial.access(loops, view) == "any" for loops, view in operands)
        scattered += sum(trial.gather_access(step) == "any" for step in nest.steps if step.kind == "gather")
        return scattered, loop in nest.reduced, -loop

    return min(range(len(nest.sizes)), key=cost)
