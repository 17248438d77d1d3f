"""A loop nest as a kernel: threads, vector lanes, reductions in a fixed order, results written where they belong.

The grid (all parallel loops but the vector loop) x (vector loop) is split over threads in blocks of 16 columns.
Every value is computed at the outermost place it does not vary in. A reduction along the vector loop adds element i
to lane i mod 16 and folds the lanes in one fixed tree: thread counts and targets agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anvil.kernels import mathlib
from anvil.kernels.dsl import LANES, Val, cast, const, eq, first_lanes, index, iota, select, splat, tree
from anvil.kernels.flow import each_vector, for_, if_, my_segments
from anvil.lower.generic import ahead
from anvil.lower.generic.ahead import Ahead
from anvil.lower.generic.apply import apply
from anvil.lower.generic.flatten import Element, in_order
from anvil.lower.generic.linalg_builder import signature
from anvil.lower.generic.nest import Nest
from anvil.lower.generic.operands import NO_LOOP, Operand
from anvil.lower.generic.window import Window


@dataclass
class _Scope:
    """Where code is being put: the loops it is inside of, their indices, the lanes in use, what is computed already."""

    inside: frozenset[int]
    at: dict[int, Val]
    mask: Val | None
    known: dict[Element, Val]

    def inner(self, at: dict[int, Val], mask: Val | None = None) -> _Scope:
        return _Scope(self.inside | set(at), self.at | at, mask or self.mask, dict(self.known))


class Scheduler:
    """Emits the code of one nest. ``values`` are the function's arguments but tid and nthreads."""

    def __init__(
        self, nest: Nest, memrefs: list[Operand], stores: Sequence[Element], values: list, converts_f16: bool
    ) -> None:
        self.nest = nest
        self.converts_f16 = converts_f16
        self.operands = memrefs
        self.stores = list(zip(stores, range(len(memrefs) - len(stores), len(memrefs)), strict=True))
        self.values = values
        self.windows = [Window(operand, ref) for operand, ref in zip(memrefs, values, strict=False)]
        self.order = list(in_order([element for element, _ in self.stores]))
        self.sizes = self._loop_sizes()
        self.lanes_reduced = nest.vector in nest.reduced
        self.kept = self._kept()
        self._late = False
        self._ahead = Ahead([], {})

    def _kept(self) -> dict[Element, int]:
        """Elementary functions that a fold computes and a store over the same loops needs again: the fold leaves them
        where the store will write, by store. Computing one again costs more than reading it back."""
        found: dict[int, Element] = {}
        folded = {operand for e in self.order if e.kind == "reduce" for operand in e.operands}
        for element, position in self.stores:
            target = self.operands[position]
            for used in in_order([element]):
                fits = used in folded and used.loops == frozenset(target.loops) and _is_function(used)
                if fits and used is not element and str(used.op.results[0].type) == target.dtype:  # type: ignore[union-attr]
                    found[position] = used
        return {element: position for position, element in found.items()}

    def _loop_sizes(self) -> dict[int, Val]:
        sizes: dict[int, Val] = {}
        for operand, ref in zip(self.operands, self.values, strict=False):
            for position, loop in enumerate(operand.loops):
                if loop not in sizes and loop != NO_LOOP:
                    sizes[loop] = ref.dim(position)
        untold = signature(self.nest).loops
        return sizes | dict(zip(untold, self.values[len(self.values) - len(untold) :], strict=True))

    def run(self, tid: Val, nthreads: Val) -> None:
        """Emit everything at the current insertion point."""
        columns = None if self.lanes_reduced else self.nest.vector
        outer = [loop for loop in range(len(self.nest.sizes)) if loop not in self.nest.reduced and loop != columns]
        rows = index(1)
        for loop in outer:
            rows = rows * self.sizes[loop]
        width = index(1) if columns is None else self.sizes[columns]
        with my_segments(rows, width, tid, nthreads) as (row, first, last):
            scope = _Scope(frozenset(outer), self._indices(outer, row), None, {})
            if self.lanes_reduced and any(
                not set(self.operands[place].loops) <= set(outer) for _, place in self.stores
            ):
                step = ahead.step([self.sizes[loop] for loop in self.nest.reduced])
                self._ahead = Ahead(ahead.moving(self.windows, self.nest.vector), self._indices(outer, row + step))
            self._settle(scope)
            self._store_here(scope, first)
            if columns is None:
                self._store_inner(scope)
            else:
                self._lanes(scope, columns, first, last, self._block)

    def _indices(self, outer: list[int], row: Val) -> dict[int, Val]:
        at = {}
        for loop in reversed(outer):
            at[loop], row = row % self.sizes[loop], row // self.sizes[loop]
        return at

    def _block(self, scope: _Scope) -> None:
        """16 elements of a parallel vector loop."""
        self._settle(scope)
        self._store_here(scope, None)
        self._store_inner(scope)

    def _lanes(self, scope: _Scope, loop: int, first: Val, last: Val, body: Callable[[_Scope], None]) -> None:
        """``body`` for 16 elements of ``loop`` at a time, then for the rest under a mask."""
        each_vector(first, last, lambda place, mask: body(scope.inner({loop: place}, mask)))

    def _settle(self, scope: _Scope) -> None:
        """Compute everything that varies over no more than the loops around here, reductions included."""
        while True:
            for element in self.order:
                if element.kind != "reduce" and element.loops <= scope.inside and self._ready(element, scope):
                    self._value(element, scope)
            folds = [
                e for e in self.order
                if e.kind == "reduce" and e not in scope.known and e.loops <= scope.inside and self._foldable(e, scope)
            ]  # fmt: skip
            if not folds:
                return
            self._fold(folds, scope)

    def _ready(self, element: Element, scope: _Scope) -> bool:
        return all(e in scope.known for e in in_order([element]) if e.kind == "reduce")

    def _foldable(self, element: Element, scope: _Scope) -> bool:
        return all(self._ready(operand, scope) for operand in element.operands)

    def _fold(self, folds: list[Element], scope: _Scope) -> None:
        """One pass over the reduced loops for all of ``folds``; their results become known in ``scope``."""
        loops = sorted(self.nest.reduced, key=lambda loop: loop == self.nest.vector)
        start = [self._spread(self._value(e.initial, scope), e) for e in folds]  # type: ignore[arg-type]
        totals = self._fold_over(loops, folds, scope, start)
        for element, total in zip(folds, totals, strict=True):
            scope.known[element] = self._across_lanes(element, total) if self.lanes_reduced else total

    def _fold_over(self, loops: list[int], folds: list[Element], scope: _Scope, carry: list[Val]) -> list[Val]:
        loop, rest = loops[0], loops[1:]
        if loop == self.nest.vector:
            return self._fold_lanes(loop, folds, scope, carry)
        with for_(0, self.sizes[loop], carry=carry) as turn:
            inner = scope.inner({loop: turn.index})
            totals = list(turn.carry)
            turn.next(self._fold_over(rest, folds, inner, totals) if rest else self._fold_here(folds, inner, totals))
        return list(turn.results)

    def _fold_lanes(self, loop: int, folds: list[Element], scope: _Scope, carry: list[Val]) -> list[Val]:
        size = self.sizes[loop]
        full = size // LANES * LANES
        last = all(e.kind != "reduce" or e in scope.known or e in folds for e in self.order)
        with for_(0, full, LANES, carry=carry) as turn:
            here = scope.inner({loop: turn.index})
            if last:
                self._ahead.ask(here.at)
            turn.next(self._fold_here(folds, here, list(turn.carry)))
        totals = list(turn.results)
        with for_(full, size, LANES, carry=totals) as tail:  # at most one turn
            mask = first_lanes(size - tail.index)
            old = list(tail.carry)
            new = self._fold_here(folds, scope.inner({loop: tail.index}, mask), old)
            tail.next([select(mask, fresh, before) for fresh, before in zip(new, old, strict=True)])
        return list(tail.results)

    def _fold_here(self, folds: list[Element], scope: _Scope, carry: list[Val]) -> list[Val]:
        totals = []
        for element, total in zip(folds, carry, strict=True):
            operands_here = [self._value(operand, scope) for operand in element.operands]
            for operand, value in zip(element.operands, operands_here, strict=True):
                if operand in self.kept:
                    self._store(value, self.kept[operand], scope)
            totals.append(self._combine(element, [*operands_here, total]))
        return totals

    def _combine(self, element: Element, arguments: list[Val]) -> Val:
        """The new total from the operands and the old one, the last of ``arguments``."""
        fold = element.fold
        assert fold is not None
        known = dict(zip(fold.formals, arguments, strict=True))
        for op in fold.body:
            known[op.results[0]] = apply(op, [known[value] for value in op.operands], self.converts_f16)
        return known[fold.result]

    def _spread(self, initial: Val, element: Element) -> Val:
        """One accumulator per lane where the operands are vectors."""
        varies = self.lanes_reduced or self.nest.vector in element.loops
        return splat(initial) if varies and initial.lanes is None else initial

    def _across_lanes(self, element: Element, total: Val) -> Val:
        """The lanes of ``total`` combined: added up where the fold adds products."""
        assert element.fold is not None
        if not element.fold.body:
            return tree(total, lambda a, b: a)  # a sum of zeros: no turn changes it
        if element.fold.body[0].name == "math.fma":
            return tree(total, lambda a, b: a + b)
        return tree(total, lambda a, b: self._combine(element, [a, b]))

    def _value(self, element: Element, scope: _Scope) -> Val:
        """``element`` at the point ``scope`` stands at; a vector if it varies along the vector loop."""
        if self._late:
            for kept in self.kept:
                if kept not in scope.known and kept.loops <= scope.inside:
                    scope.known[kept] = self._load(self.kept[kept], scope)
        for needed in in_order([element], scope.known):
            scope.known[needed] = self._compute(needed, scope)
        return scope.known[element]

    def _compute(self, element: Element, scope: _Scope) -> Val:
        if element.kind == "argument":
            return self.values[element.position]
        if element.kind == "load":
            return self._load(element.position, scope)
        if element.kind == "gather":
            return self._gather(element, scope)
        if element.kind == "index":
            (loop,) = element.loops
            here = scope.at[loop]
            return here if loop != self.nest.vector else splat(here) + cast(iota(element="i64"), "index")
        assert element.op is not None, f"{element.kind} must be settled before it is used"
        return apply(element.op, [scope.known[operand] for operand in element.operands], self.converts_f16)

    def _gather(self, element: Element, scope: _Scope) -> Val:
        *outer, last = (scope.known[i] for i in element.operands)
        turns = element.operands[-1].kind == "index" and all(i.lanes is None for i in outer)
        turn = scope.at[self.nest.vector] if turns and last.lanes is not None else None
        return self.windows[element.position].gather([*outer, last], turn=turn, mask=scope.mask)

    def _store_here(self, scope: _Scope, chunk: Val | None) -> None:
        """Store what varies over exactly the loops around here; once, where it does not vary over some of them."""
        outside = frozenset() if chunk is not None or self.nest.vector is None else {self.nest.vector}
        for element, position in self.stores:
            operand = self.operands[position]
            own = frozenset(operand.loops)
            if not own <= scope.inside or not own >= outside:
                continue
            idle = [scope.at[loop] for loop in sorted(scope.inside - own - outside)] + ([chunk] if chunk else [])
            first = const(1, "i1")
            for turn in idle:
                first = first & eq(turn, 0)
            with if_(first):
                self._store(self._value(element, scope), position, scope.inner({}))

    def _store_inner(self, scope: _Scope) -> None:
        """Store what varies over the reduced loops too: one pass over them."""
        late = [(e, p) for e, p in self.stores if not frozenset(self.operands[p].loops) <= scope.inside]
        if late:
            self._late = True
            self._store_over(sorted(self.nest.reduced, key=lambda loop: loop == self.nest.vector), late, scope)
            self._late = False

    def _store_over(self, loops: list[int], late: list[tuple[Element, int]], scope: _Scope) -> None:
        if not loops:
            for element, position in late:
                self._store(self._value(element, scope), position, scope)
            return
        loop, rest = loops[0], loops[1:]
        if loop == self.nest.vector:
            self._lanes(scope, loop, index(0), self.sizes[loop], lambda inner: self._store_over(rest, late, inner))
            return
        with for_(0, self.sizes[loop]) as turn:
            self._store_over(rest, late, scope.inner({loop: turn.index}))

    def _load(self, position: int, scope: _Scope) -> Val:
        window = self.windows[position]
        return window.load([scope.at[loop] for loop in window.operand.loops], scope.mask)

    def _store(self, value: Val, position: int, scope: _Scope) -> None:
        window = self.windows[position]
        window.store(value, [scope.at[loop] for loop in window.operand.loops], scope.mask)


def _is_function(element: Element) -> bool:
    return element.op is not None and element.op.name.startswith("math.") and element.op.name[5:] in mathlib.functions()
