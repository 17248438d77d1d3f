"""Views of tensors that have formulas: where the index of each source dimension comes from."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import sympy
from torch.fx import Node

from anvil.graph.rewrite import INT_MAX, argument, same_size, shape_of

if TYPE_CHECKING:
    from anvil.frontend.index_formulas import Formulas

Formula = sympy.Basic


@cache
def index_symbol(dim: int) -> sympy.Symbol:
    """The index along dimension ``dim``."""
    return sympy.Symbol(f"d{dim}", integer=True, nonnegative=True)


def broadcast(formula: Formula, shape: tuple[Any, ...], target: tuple[Any, ...]) -> Formula:
    shift = len(target) - len(shape)
    return formula.subs(
        {index_symbol(dim): 0 if same_size(size, 1) else index_symbol(dim + shift) for dim, size in enumerate(shape)},
        simultaneous=True,
    )


def renumber(formula: Formula, origin: dict[int, Any]) -> Formula:
    """Replace the index of each source dimension by what ``origin`` says: another index, or a formula."""
    return formula.subs({index_symbol(dim): index for dim, index in origin.items()}, simultaneous=True)


def unsqueeze(formulas: Formulas, node: Node) -> Formula | None:
    formula, dim = formulas.of(node.args[0]), argument(node, "dim")
    if formula is None:
        return None
    rank = len(shape_of(node.args[0]))
    return renumber(formula, {old: index_symbol(old + (old >= dim)) for old in range(rank)})


def same_but_ones(formulas: Formulas, node: Node) -> Formula | None:
    """reshape and squeeze that only add or remove dimensions of size 1."""
    formula = formulas.of(node.args[0])
    if formula is None:
        return None
    old, new = (
        [dim for dim, size in enumerate(shape_of(item)) if not same_size(size, 1)] for item in (node.args[0], node)
    )
    sizes = [(shape_of(node.args[0])[a], shape_of(node)[b]) for a, b in zip(old, new, strict=False)]
    if len(old) != len(new) or not all(same_size(*pair) for pair in sizes):
        return None
    origin: dict[int, Any] = dict.fromkeys(range(len(shape_of(node.args[0]))), 0)
    origin |= {a: index_symbol(b) for a, b in zip(old, new, strict=True)}
    return renumber(formula, origin)


def expand(formulas: Formulas, node: Node) -> Formula | None:
    return formulas.along(node.args[0], node)


def slice_part(formulas: Formulas, node: Node) -> Formula | None:
    formula, start, step = (formulas.of(argument(node, name)) for name in ("self", "start", "step"))
    dim, end = argument(node, "dim"), argument(node, "end")
    if formula is None or start is None or step is None or not start.is_nonnegative:
        return None
    if end is None or end == INT_MAX or ((bound := formulas.of(end)) is not None and bound.is_nonnegative):
        return renumber(formula, {dim: start + step * index_symbol(dim)})
    return None


def select(formulas: Formulas, node: Node) -> Formula | None:
    formula, chosen, dim = formulas.of(node.args[0]), formulas.of(argument(node, "index")), argument(node, "dim")
    if formula is None or chosen is None or not chosen.is_nonnegative:
        return None
    rank = len(shape_of(node.args[0]))
    return renumber(formula, {dim: chosen} | {old: index_symbol(old - 1) for old in range(dim + 1, rank)})


def transpose(formulas: Formulas, node: Node) -> Formula | None:
    formula = formulas.of(node.args[0])
    first, second = node.args[1:3]
    if formula is None:
        return None
    return renumber(formula, {first: index_symbol(second), second: index_symbol(first)})


def permute(formulas: Formulas, node: Node) -> Formula | None:
    formula = formulas.of(node.args[0])
    return None if formula is None else renumber(formula, {old: index_symbol(i) for i, old in enumerate(node.args[1])})


def gather(formulas: Formulas, node: Node) -> Formula | None:
    """``source[i0, i1, ...]`` with index tensors for the leading dimensions, all of them broadcast together."""
    source, indices = node.args
    formula = formulas.of(source)
    if formula is None or any(index is None for index in indices):
        return None
    trailing = len(shape_of(source)) - len(indices)
    leading = shape_of(node)[: len(shape_of(node)) - trailing]
    origin: dict[int, Any] = {len(indices) + offset: index_symbol(len(leading) + offset) for offset in range(trailing)}
    for dim, index in enumerate(indices):
        chosen = formulas.of(index)
        if chosen is None or not chosen.is_nonnegative:
            return None
        origin[dim] = broadcast(chosen, shape_of(index), leading)
    return renumber(formula, origin)
