"""``scaled_dot_product_attention`` -> ``anvil::attention``, its mask as a rule where it follows one."""

from __future__ import annotations

import math
import operator

import sympy
import torch
from torch.fx import Node

from anvil.frontend.index_formulas import Formulas
from anvil.frontend.masks import MaskRule, mask_rule
from anvil.graph.describe import source_line
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, argument, calls, emit, respell, same_size, shape_of, substitute
from anvil.graph.symbolic import symbol_name

aten = torch.ops.aten


def size_node(program: GraphProgram, before: Node, size: sympy.Expr) -> Node | int:
    """A number, or nodes that compute a linear expression of the input sizes."""
    if size.is_Integer:
        return int(size)
    total: Node | int | None = None
    for term in sympy.Add.make_args(size):
        factor, symbol = term.as_coeff_Mul()
        part = int(factor) if symbol == 1 else _input_size(program, before, symbol)
        if symbol != 1 and factor != 1:
            part = emit(program, before, operator.mul, part, int(factor))
        total = part if total is None else emit(program, before, operator.add, total, part)
    return total


def _input_size(program: GraphProgram, before: Node, symbol: sympy.Expr) -> Node:
    for placeholder in program.module.graph.find_nodes(op="placeholder"):
        for dim, size in enumerate(shape_of(placeholder)):
            if symbol_name(size) == str(symbol):
                return emit(program, before, aten.sym_size.int, placeholder, dim)
    raise LookupError(f"no input has the size {symbol}")


def emit_attention(
    program: GraphProgram,
    node: Node,
    operands: tuple[Node, Node, Node],
    mask: Node | None,
    scale: float,
    rule: MaskRule,
    softcap: float | None = None,
) -> Node:
    """The call that replaces ``node``; with a mask operand the rule is not used."""
    program.notes.append(f"fuse_attention: {'mask tensor' if mask else rule} at {source_line(node)}")
    offset = size_node(program, node, rule.offset) if mask is None and rule.causal else 0
    causal, window = (False, None) if mask is not None else (rule.causal, rule.window)
    target = torch.ops.anvil.attention.default
    return respell(node, target, *operands, mask, float(scale), causal, window, softcap, offset)


def _fuse(program: GraphProgram) -> None:
    formulas = Formulas()
    for node in calls(program.module.graph, aten.scaled_dot_product_attention.default):
        q, k, v, mask = (argument(node, name) for name in ("query", "key", "value", "attn_mask"))
        if not _plain(node, q, k, v):
            continue
        scale = argument(node, "scale")
        if scale is None:
            scale = 1 / math.sqrt(shape_of(q)[3])
        rule = MaskRule(causal=bool(argument(node, "is_causal")))
        if mask is not None and (found := mask_rule(mask, shape_of(q)[2], shape_of(k)[2], formulas)):
            rule, mask = found, None
        substitute(node, emit_attention(program, node, (q, k, v), mask, scale, rule))


def _plain(node: Node, q: Node, k: Node, v: Node) -> bool:
    """Four-dimensional operands of one type with equal batch, heads that divide, no dropout, a mask or is_causal."""
    if any(len(shape_of(item)) != 4 for item in (q, k, v)) or argument(node, "dropout_p") != 0:
        return False
    if argument(node, "attn_mask") is not None and argument(node, "is_causal"):
        return False
    heads = [shape_of(item)[1] for item in (q, k, v)]
    batches = [shape_of(item)[0] for item in (q, k, v)]
    same_type = len({item.meta["val"].dtype for item in (q, k, v)}) == 1
    return (
        same_type
        and isinstance(shape_of(q)[3], int)
        and all(same_size(batches[0], batch) for batch in batches)
        and all(isinstance(count, int) for count in heads)
        and heads[1] == heads[2]
        and heads[0] % heads[1] == 0
    )


FUSE_ATTENTION = GraphPass("fuse_attention", _fuse)
