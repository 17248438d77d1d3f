"""Which keys a query sees: attention masks as rules, recognised from what the mask tensor holds."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch.fx import Node

from anvil.frontend.index_formulas import Formulas, index_symbol, is_condition, size_formula
from anvil.graph.rewrite import shape_of


@dataclass(frozen=True)
class MaskRule:
    """Query i sees keys ``j <= i + offset`` and, with a window, ``j > i + offset - window``; all if not causal.

    ``every_row_sees`` says that no query is left without a key, whatever the sizes.
    """

    causal: bool
    offset: sympy.Expr = sympy.S.Zero
    window: int | None = None
    every_row_sees: bool = True

    def __str__(self) -> str:
        if not self.causal:
            return "no mask"
        shift = f", offset {self.offset}" if self.offset != 0 else ""
        return f"causal{shift}" + (f", window {self.window}" if self.window is not None else "")


Size = int | torch.SymInt


def mask_rule(mask: Node, queries: Size, keys: Size, formulas: Formulas) -> MaskRule | None:
    """The rule that ``mask`` (bool, True is visible; or added to scores) follows; None if it is no such rule."""
    formula = formulas.of(mask)
    if formula is None:
        return None
    visible, finite = _visible(formula, mask.meta["val"].dtype)
    rule = None if visible is None else _rule(visible, len(shape_of(mask)), size_formula(queries), size_formula(keys))
    if rule is None or (finite and not rule.every_row_sees):
        return None  # a finite penalty leaves a row without visible keys its softmax over all of them
    return rule


def hidden_rule(hidden: Node, queries: Size, keys: Size, formulas: Formulas) -> MaskRule | None:
    """The rule of a bool tensor that is True where a key is hidden."""
    formula = formulas.of(hidden)
    if not is_condition(formula):
        return None
    return _rule(sympy.Not(formula), len(shape_of(hidden)), size_formula(queries), size_formula(keys))


def hides(value: object, dtype: torch.dtype) -> bool:
    """Whether a number put in place of a score takes its key out of the softmax."""
    return isinstance(value, (int, float)) and value <= 0.5 * torch.finfo(dtype).min


def _visible(formula: sympy.Basic, dtype: torch.dtype) -> tuple[Boolean | None, bool]:
    """The condition under which a key is visible, and whether hidden keys get a finite penalty."""
    if is_condition(formula):
        return formula, False
    if not dtype.is_floating_point:
        return None, False
    seen, before, finite = [], [], False
    pieces = formula.args if isinstance(formula, sympy.Piecewise) else [(formula, sympy.true)]
    for value, condition in pieces:
        here = sympy.And(condition, *(sympy.Not(earlier) for earlier in before))
        before.append(condition)
        if value.is_zero:
            seen.append(here)
        elif not (value.is_number and value.is_extended_real and hides(float(value), dtype)):
            return None, False
        elif value != -sympy.oo:
            finite = True
    return sympy.Or(*seen), finite


def _rule(visible: Boolean, rank: int, queries: sympy.Expr, keys: sympy.Expr) -> MaskRule | None:
    """Read a conjunction of linear conditions ``key <= query + a``, ``key >= query + b``; others must always hold."""
    query, key = index_symbol(rank - 2) if rank > 1 else sympy.S.Zero, index_symbol(rank - 1)
    uppers: list[sympy.Expr] = []
    lowers: list[sympy.Expr] = []
    conditions = visible.args if isinstance(visible, sympy.And) else [visible]
    for condition in conditions:
        excess = _nonpositive(condition)
        if excess is None:
            return None
        slopes = (excess.coeff(query) if query.is_Symbol else sympy.Integer(0), excess.coeff(key))
        rest = sympy.expand(excess - slopes[0] * query - slopes[1] * key)
        if any(symbol.name[1:].isdigit() and symbol.name[0] == "d" for symbol in rest.free_symbols):
            return None
        if slopes == (-1, 1):
            uppers.append(-rest)
        elif slopes == (1, -1):
            lowers.append(rest)
        elif not _always(slopes, rest, queries, keys):
            return None
    if not uppers:
        return MaskRule(causal=False) if not lowers else None
    offset, lower = _extreme(uppers, smallest=True), _extreme(lowers, smallest=False)
    if offset is None or (lowers and lower is None):
        return None
    window = None
    if lower is not None:
        width = sympy.expand(offset - lower + 1)
        if not width.is_Integer or width < 1:
            return None
        window = int(width)
    aligned = offset == 0 and queries == keys
    return MaskRule(True, offset, window, every_row_sees=bool(aligned or (window is None and offset.is_nonnegative)))


def _nonpositive(condition: Boolean) -> sympy.Expr | None:
    """``e`` such that an integer condition means ``e <= 0``; None for what is no linear inequality."""
    if condition == sympy.true:
        return sympy.Integer(0)
    if isinstance(condition, (sympy.Le, sympy.Lt)):
        excess = condition.lhs - condition.rhs
    elif isinstance(condition, (sympy.Ge, sympy.Gt)):
        excess = condition.rhs - condition.lhs
    else:
        return None
    if isinstance(condition, (sympy.Lt, sympy.Gt)):
        excess += 1
    excess = sympy.expand(excess)
    return excess if excess.is_polynomial() and excess.is_integer else None


def _always(slopes: tuple[sympy.Expr, sympy.Expr], rest: sympy.Expr, queries: sympy.Expr, keys: sympy.Expr) -> bool:
    """Whether ``a * query + b * key + rest <= 0`` for all indices in range."""
    largest = rest
    for slope, size in zip(slopes, (queries, keys), strict=True):
        if slope.is_positive:
            largest = largest + slope * (size - 1)
        elif not slope.is_nonpositive:
            return False
    return bool(sympy.expand(largest).is_nonpositive)


def _extreme(bounds: list[sympy.Expr], smallest: bool) -> sympy.Expr | None:
    """The tightest of some bounds, where they can be compared."""
    if not bounds:
        return None
    best = bounds[0]
    for bound in bounds[1:]:
        difference = sympy.expand(bound - best)
        if not difference.is_number:
            return None
        if (difference < 0) == smallest and difference != 0:
            best = bound
    return best
