"""One spelling for arithmetic: Tensor overloads with numbers, products for powers, bitwise operators on bool, silu."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, Rule, argument, by_target, is_call, respell, shape_of

aten = torch.ops.aten


def _renamed(target: Callable[..., object]) -> Rule:
    """Call ``target`` with the same two operands."""

    def rule(program: GraphProgram, node: Node) -> Node | None:
        return respell(node, target, *node.args[:2])

    return rule


def _scaled(target: Callable[..., object]) -> Rule:
    """``add`` and ``sub`` with a number: the number times alpha."""

    def rule(program: GraphProgram, node: Node) -> Node | None:
        return respell(node, target, node.args[0], node.args[1] * argument(node, "alpha"))

    return rule


def _bitwise(target: Callable[..., object]) -> Rule:
    """A logical operator on operands that are bool anyway."""

    def rule(program: GraphProgram, node: Node) -> Node | None:
        operands = node.args
        if any(operand.meta["val"].dtype != torch.bool for operand in operands):
            return None
        return respell(node, target, *operands)

    return rule


def _power(program: GraphProgram, node: Node) -> Node | None:
    """The exponents that PyTorch itself computes with a product or a root."""
    base, exponent = node.args
    if not base.meta["val"].dtype.is_floating_point:
        return None
    if exponent == 2:
        return respell(node, aten.mul.Tensor, base, base)
    if exponent == 0.5:
        return respell(node, aten.sqrt.default, base)
    if exponent == -0.5:
        return respell(node, aten.rsqrt.default, base)
    return None


def _square(program: GraphProgram, node: Node) -> Node | None:
    return respell(node, aten.mul.Tensor, node.args[0], node.args[0])


def _silu(program: GraphProgram, node: Node) -> Node | None:
    """``x * sigmoid(x)``"""
    for x, gate in (node.args, node.args[::-1]):
        if is_call(gate, aten.sigmoid.default) and gate.args[0] is x:
            return respell(node, aten.silu.default, x)
    return None


def _softmax(program: GraphProgram, node: Node) -> Node | None:
    rank = max(len(shape_of(node)), 1)
    dtype = None if node.target is aten._softmax.default else argument(node, "dtype")
    return respell(node, aten.softmax.int, node.args[0], argument(node, "dim") % rank, dtype)


def _cat(program: GraphProgram, node: Node) -> Node | None:
    return respell(node, aten.cat.default, list(node.args[0]), argument(node, "dim") % len(shape_of(node)))


def _cast(program: GraphProgram, node: Node) -> Node | None:
    return respell(node, aten._to_copy.default, node.args[0], dtype=node.meta["val"].dtype)


def _mean(program: GraphProgram, node: Node) -> Node | None:
    source = node.args[0]
    rank = len(shape_of(source))
    dims = argument(node, "dim")
    if not dims or argument(node, "dtype") not in (None, source.meta["val"].dtype):
        return None
    return respell(node, aten.mean.dim, source, [dim % rank for dim in dims], argument(node, "keepdim"))


CANONICAL: dict[object, Rule] = {
    aten.add.Scalar: _scaled(aten.add.Tensor),
    aten.sub.Scalar: _scaled(aten.sub.Tensor),
    aten.mul.Scalar: _renamed(aten.mul.Tensor),
    aten.div.Scalar: _renamed(aten.div.Tensor),
    aten.__and__.Tensor: _renamed(aten.bitwise_and.Tensor),
    aten.__or__.Tensor: _renamed(aten.bitwise_or.Tensor),
    aten.logical_and.default: _bitwise(aten.bitwise_and.Tensor),
    aten.logical_or.default: _bitwise(aten.bitwise_or.Tensor),
    aten.logical_not.default: _bitwise(aten.bitwise_not.default),
    aten.pow.Tensor_Scalar: _power,
    aten.square.default: _square,
    aten.mul.Tensor: _silu,
    aten._softmax.default: _softmax,
    aten.softmax.int: _softmax,
    aten.cat.default: _cat,
    aten.mean.dim: _mean,
    aten.type_as.default: _cast,
    aten.to.dtype: _cast,
    aten.to.device: _cast,
    aten.to.dtype_layout: _cast,
}

CANONICAL_SPELLING = GraphPass("canonical_spelling", by_target(CANONICAL))
