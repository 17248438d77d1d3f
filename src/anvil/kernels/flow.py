"""Control flow of kernels: loops and branches as ``with`` blocks, and how threads share the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anvil.kernels.dsl import LANES, Val, ceil_div, first_lanes, greater, index, lesser, ne
from anvil.mlir import InsertionPoint, scf

Carried = TypeVar("Carried")


@dataclass
class Loop(Generic[Carried]):
    """A loop: ``index`` and ``carry`` for its body, ``results`` after it. Carried values may be nested sequences."""

    index: Val
    carry: Carried
    results: Carried
    _yielded: list[Val]

    def next(self, carry: Carried) -> None:
        """The carried values of the next iteration. Last statement of the body."""
        self._yielded = _flatten(carry)


@contextmanager
def for_(first: Val | int, last: Val | int, step: Val | int = 1, carry: Carried = ()) -> Iterator[Loop[Carried]]:
    """``for index in range(first, last, step)``. With ``carry`` the body must end in ``loop.next(...)``."""
    operation = scf.ForOp(index(first).ssa, index(last).ssa, index(step).ssa, [v.ssa for v in _flatten(carry)])
    with InsertionPoint(operation.body):
        arguments = iter([Val(argument) for argument in operation.inner_iter_args])
        loop = Loop(Val(operation.induction_variable), _rebuild(carry, arguments), carry, [])
        yield loop
        scf.YieldOp([value.ssa for value in loop._yielded])
    loop.results = _rebuild(carry, iter([Val(result) for result in operation.results]))


@contextmanager
def if_(condition: Val) -> Iterator[None]:
    with InsertionPoint(scf.IfOp(condition.ssa).then_block):
        yield
        scf.YieldOp([])


@contextmanager
def if_else(condition: Val) -> Iterator[tuple[InsertionPoint, InsertionPoint]]:
    """Two branches: ``with if_else(c) as (then, otherwise):``, then ``with then:`` and ``with otherwise:``."""
    operation = scf.IfOp(condition.ssa, has_else=True)
    with InsertionPoint(operation.then_block):
        end_then = scf.YieldOp([])
    with InsertionPoint(operation.regions[1].blocks[0]):
        end_else = scf.YieldOp([])
    yield InsertionPoint(end_then), InsertionPoint(end_else)


def choose(condition: Val, yes: Callable[[], Carried], no: Callable[[], Carried], like: Carried) -> Carried:
    """The values of one of two branches; each is built by a function returning values nested and typed ``like``."""
    operation = scf.IfOp(condition.ssa, [value.type for value in _flatten(like)], has_else=True)
    for block, branch in ((operation.then_block, yes), (operation.regions[1].blocks[0], no)):
        with InsertionPoint(block):
            scf.YieldOp([value.ssa for value in _flatten(branch())])
    return _rebuild(like, iter([Val(result) for result in operation.results]))


def _flatten(nest: Any) -> list[Val]:
    return [nest] if isinstance(nest, Val) else [leaf for child in nest for leaf in _flatten(child)]


def _rebuild(shape: Any, values: Iterator[Val]) -> Any:
    return next(values) if isinstance(shape, Val) else [_rebuild(child, values) for child in shape]


def my_range(count: Val, tid: Val, nthreads: Val) -> tuple[Val, Val]:
    """The contiguous part [first, last) of ``range(count)`` that thread ``tid`` of ``nthreads`` works on."""
    return count * tid // nthreads, count * (tid + 1) // nthreads


@contextmanager
def my_segments(rows: Val, columns: Val, tid: Val, nthreads: Val, width: int = LANES) -> Iterator[tuple[Val, Val, Val]]:
    """Loop over this thread's part of a ``rows`` x ``columns`` grid: (row, first column, last column) per row touched.

    The grid is cut, row after row, into blocks of ``width`` columns, so one long row is shared like many short ones.
    """
    blocks = greater(ceil_div(columns, width), index(1))
    first, last = my_range(rows * blocks, tid, nthreads)
    with for_(first // blocks, ceil_div(last, blocks)) as loop:
        done = loop.index * blocks
        begin = greater(first - done, index(0)) * width
        end = lesser(lesser(last - done, blocks) * width, columns)
        yield loop.index, begin, end


def each_vector(first: Val | int, last: Val, body: Callable[[Val, Val | None], None], lanes: int = LANES) -> None:
    """Emit ``body(column, mask)`` for whole vectors of ``range(first, last)`` (mask None) and for the tail, if any."""
    first = index(first)
    whole = last - (last - first) % lanes
    with for_(first, whole, lanes) as loop:
        body(loop.index, None)
    with if_(whole < last):
        body(whole, first_lanes(last - whole, lanes))


def unrolled(count: Val, times: int, carry: Carried, step: Callable[[Val, int, Carried], Carried]) -> Carried:
    """Fold ``step(base, offset, carry)`` over base + offset = 0 .. count-1, ``times`` steps in one turn of the loop.

    For loops whose body is so short that counting and addressing would cost as much as the work.
    """
    whole = count - count % times
    with for_(0, whole, times, carry=carry) as loop:
        values = loop.carry
        for offset in range(times):
            values = step(loop.index, offset, values)
        loop.next(values)
    with for_(whole, count, carry=loop.results) as rest:
        rest.next(step(rest.index, 0, rest.carry))
    return rest.results


def in_pieces(first: Val | int, last: Val, size: int, body: Callable[[Val, int], None]) -> None:
    """Cover ``range(first, last)``: emit ``body(start, size)`` in a loop, then the rest in falling powers of two."""
    first = index(first)
    start = last - (last - first) % size
    with for_(first, start, size) as loop:
        body(loop.index, size)
    rest = last - start
    for bit in reversed(range((size - 1).bit_length())):
        piece = rest & (1 << bit)
        with if_(ne(piece, 0)):
            body(start, 1 << bit)
        start = start + piece
