"""Symbolic evaluation of index arithmetic: what a mask or position tensor holds, as a formula of its indices.

``arange(S)[:, None] >= arange(S)`` has the formula ``d1 <= d0``, where d0, d1, ... are the indices of the element.
Only tensors computed from sizes and constants have a formula; whatever depends on data has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import sympy
import torch
from sympy.logic.boolalg import Boolean, BooleanFalse, BooleanTrue
from torch.fx import Node

from anvil.frontend import index_views
from anvil.frontend.index_views import index_symbol
from anvil.graph.rewrite import argument, same_size, shape_of

aten = torch.ops.aten
Formula = sympy.Basic


def size_formula(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _constant(value: object) -> Formula | None:
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, float):
        return sympy.oo * int(math.copysign(1, value)) if math.isinf(value) else sympy.Float(value)
    return None


def is_condition(formula: object) -> TypeGuard[Boolean]:
    """Whether a formula is true or false. (To sympy a symbol is Boolean as well as a number; here it is a number.)"""
    return isinstance(formula, Boolean) and not isinstance(formula, sympy.Expr)


def as_number(formula: Formula) -> sympy.Expr:
    """A bool formula as 0 or 1; a number as it is."""
    if isinstance(formula, BooleanTrue):
        return sympy.Integer(1)
    if isinstance(formula, BooleanFalse):
        return sympy.Integer(0)
    return sympy.Piecewise((1, formula), (0, True)) if is_condition(formula) else formula


class Formulas:
    """Formulas of the nodes of one graph, computed once each."""

    def __init__(self) -> None:
        self._known: dict[Node, Formula | None] = {}

    def of(self, item: object) -> Formula | None:
        """The formula of a node, a number or a symbolic size; None when its value depends on data."""
        if not isinstance(item, Node):
            return size_formula(item) if isinstance(item, torch.SymInt) else _constant(item)
        if item not in self._known:
            self._known[item] = self._evaluate(item)
        return self._known[item]

    def _evaluate(self, node: Node) -> Formula | None:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            return size_formula(value)
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        return rule(self, node) if rule else None

    def along(self, item: object, node: Node) -> Formula | None:
        """The formula of an operand in the indices of ``node``, which the operand is broadcast to."""
        formula = self.of(item)
        if formula is None or not isinstance(item, Node) or not isinstance(item.meta["val"], torch.Tensor):
            return formula
        return index_views.broadcast(formula, shape_of(item), shape_of(node))


Rule = Callable[[Formulas, Node], "Formula | None"]


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Rule:
    def rule(formulas: Formulas, node: Node) -> Formula | None:
        left, right = (formulas.along(operand, node) for operand in node.args[:2])
        if left is None or right is None or node.kwargs.get("alpha", 1) != 1:
            return None
        return sympy.sympify(operation(as_number(left), as_number(right)))

    return rule


def _comparison(relation: Callable[[Any, Any], Any]) -> Rule:
    def rule(formulas: Formulas, node: Node) -> Formula | None:
        left, right = (formulas.along(operand, node) for operand in node.args[:2])
        if left is None or right is None:
            return None
        difference = sympy.expand(as_number(left) - as_number(right))
        return None if difference.has(sympy.Piecewise, sympy.nan) else sympy.sympify(relation(difference, 0))

    return rule


def _logic(operation: Callable[..., Boolean]) -> Rule:
    def rule(formulas: Formulas, node: Node) -> Formula | None:
        operands = [formulas.along(operand, node) for operand in node.args]
        return operation(*operands) if all(is_condition(operand) for operand in operands) else None

    return rule


def _arange(formulas: Formulas, node: Node) -> Formula | None:
    if node.meta["val"].dtype.is_floating_point:
        return None
    start, step = 0, 1
    if node.target is not aten.arange.default:
        start = argument(node, "start")
    if node.target is aten.arange.start_step:
        step = argument(node, "step")
    first, stride = formulas.of(start), formulas.of(step)
    return None if first is None or stride is None else first + stride * index_symbol(0)


def _full(formulas: Formulas, node: Node) -> Formula | None:
    fill = node.args[1]
    if node.meta["val"].dtype == torch.bool and isinstance(fill, (int, float)):
        fill = bool(fill)
    return formulas.of(fill)


def _cast(formulas: Formulas, node: Node) -> Formula | None:
    formula = formulas.of(node.args[0])
    if formula is None:
        return None
    source, target = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    if target == torch.bool:
        return formula if is_condition(formula) else None
    if source.is_floating_point and not target.is_floating_point:
        return None
    return as_number(formula)


def _where(formulas: Formulas, node: Node) -> Formula | None:
    condition, yes, no = (formulas.along(operand, node) for operand in node.args)
    if yes is None or no is None or not is_condition(condition):
        return None
    if is_condition(yes) and is_condition(no):
        return sympy.Or(sympy.And(condition, yes), sympy.And(sympy.Not(condition), no))
    return sympy.piecewise_fold(sympy.Piecewise((as_number(yes), condition), (as_number(no), True)))


def _masked_fill(formulas: Formulas, node: Node) -> Formula | None:
    source, mask, fill = (formulas.along(operand, node) for operand in node.args)
    if source is None or fill is None or not is_condition(mask):
        return None
    if is_condition(source):
        return None
    return sympy.piecewise_fold(sympy.Piecewise((as_number(fill), mask), (source, True)))


def _triangle(keep: Callable[[Any, Any], Any]) -> Rule:
    def rule(formulas: Formulas, node: Node) -> Formula | None:
        source, diagonal = formulas.of(node.args[0]), formulas.of(argument(node, "diagonal"))
        if source is None or diagonal is None:
            return None
        rank = len(shape_of(node))
        inside = sympy.sympify(keep(index_symbol(rank - 1) - index_symbol(rank - 2), diagonal))
        if is_condition(source):
            return sympy.And(source, inside)
        return sympy.piecewise_fold(sympy.Piecewise((source, inside), (0, True)))

    return rule


def _cumsum(formulas: Formulas, node: Node) -> Formula | None:
    """Of a tensor that is constant along the dimension."""
    formula, dim = formulas.of(node.args[0]), argument(node, "dim") % len(shape_of(node))
    if formula is None or index_symbol(dim) in formula.free_symbols:
        return None
    return as_number(formula) * (index_symbol(dim) + 1)


def _diff(formulas: Formulas, node: Node) -> Formula | None:
    """First differences, when the element that ``prepend`` makes has the same formula as the others."""
    source, prepend = formulas.of(node.args[0]), argument(node, "prepend")
    if source is None or argument(node, "n") != 1 or argument(node, "append") is not None:
        return None
    dim = argument(node, "dim") % len(shape_of(node))
    index = index_symbol(dim)
    if prepend is None:
        return sympy.expand(source.subs(index, index + 1) - source)
    first = formulas.of(prepend)
    if first is None or not same_size(shape_of(prepend)[dim], 1):
        return None
    difference = sympy.expand(source - source.subs(index, index - 1))
    at_start = sympy.expand(source.subs(index, 0) - first)
    return difference if at_start == difference.subs(index, 0) else None


_RULES: dict[Any, Rule] = {
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.full.default: _full,
    aten._to_copy.default: _cast,
    aten.add.Tensor: _arithmetic(lambda a, b: a + b),
    aten.sub.Tensor: _arithmetic(lambda a, b: a - b),
    aten.rsub.Scalar: _arithmetic(lambda a, b: b - a),
    aten.mul.Tensor: _arithmetic(lambda a, b: a * b),
    aten.le.Tensor: _comparison(sympy.Le),
    aten.le.Scalar: _comparison(sympy.Le),
    aten.lt.Tensor: _comparison(sympy.Lt),
    aten.lt.Scalar: _comparison(sympy.Lt),
    aten.ge.Tensor: _comparison(sympy.Ge),
    aten.ge.Scalar: _comparison(sympy.Ge),
    aten.gt.Tensor: _comparison(sympy.Gt),
    aten.gt.Scalar: _comparison(sympy.Gt),
    aten.eq.Tensor: _comparison(sympy.Eq),
    aten.eq.Scalar: _comparison(sympy.Eq),
    aten.ne.Tensor: _comparison(sympy.Ne),
    aten.ne.Scalar: _comparison(sympy.Ne),
    aten.bitwise_and.Tensor: _logic(sympy.And),
    aten.bitwise_or.Tensor: _logic(sympy.Or),
    aten.bitwise_not.default: _logic(sympy.Not),
    aten.where.self: _where,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
    aten.where.Scalar: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.triu.default: _triangle(sympy.Ge),
    aten.tril.default: _triangle(sympy.Le),
    aten.unsqueeze.default: index_views.unsqueeze,
    aten.squeeze.dims: index_views.same_but_ones,
    aten.reshape.default: index_views.same_but_ones,
    aten.expand.default: index_views.expand,
    aten.slice.Tensor: index_views.slice_part,
    aten.select.int: index_views.select,
    aten.transpose.int: index_views.transpose,
    aten.permute.default: index_views.permute,
    aten.index.Tensor: index_views.gather,
    aten.cumsum.default: _cumsum,
    aten.diff.default: _diff,
}
