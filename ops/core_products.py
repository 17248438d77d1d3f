"""Products of matrices and vectors: with K = 0, with a summand, batched, spelled as an equation."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.overloads.bounds import contraction
from assay.overloads.spec import Form, Given, Overload


def given(axes: str) -> tuple[Given, ...]:
    """Tensors of the axes before each ``|``."""
    return tuple(map(Given, axes.split("|")))


def forms(*axes: str, **kwargs: Any) -> tuple[Form, ...]:
    return tuple(Form(f"{item} {kwargs or ''}".strip(), given(item), (), kwargs) for item in axes)


def added(c, a, b, beta=1, alpha=1):
    return (beta * c + alpha * np.matmul(a, b)).astype(c.dtype)


def linear(x, w, b=None):
    return np.matmul(x, w.T) if b is None else np.matmul(x, w.T) + b


def einsum(*operands):
    """Arrays, then the equation."""
    return np.einsum(operands[-1], *operands[:-1])


KINDS = {"kinds": ("ordinary", "whole", "positive")}
INNER = {"bound": contraction(np.matmul, lambda a, b: a.shape[-1]), **KINDS}
ADDED = {"bound": contraction(added, lambda c, a, b: a.shape[-1] + 2), **KINDS}
EQUATIONS = (("M K|N K", "mk,nk->mn"), ("B M K|B K N", "bmk,bkn->bmn"), ("M K|K", "mk,k->m"), ("M|N", "m,n->mn"))

OVERLOADS = (
    Overload("aten.mm.default", np.matmul, forms("M K|K N"), **INNER),
    Overload("aten.bmm.default", np.matmul, forms("B M K|B K N"), **INNER),
    Overload("aten.mv.default", np.matmul, forms("M K|K"), **INNER),
    Overload("aten.dot.default", np.dot, forms("K|K"), **INNER),
    Overload("aten.matmul.default", np.matmul, forms("M K|K N", "B M K|K N", "K|K N", "B 1 M K|3 K N"), **INNER),
    Overload("aten.outer.default", np.outer, forms("M|N"), kinds=("ordinary",)),
    Overload(
        "aten.addmm.default",
        added,
        (*forms("M N|M K|K N", "N|M K|K N"), *forms("M N|M K|K N", beta=2, alpha=3)),
        **ADDED,
    ),
    Overload(
        "aten.baddbmm.default",
        added,
        (*forms("B M N|B M K|B K N"), *forms("1 N|B M K|B K N", beta=3, alpha=2)),
        **ADDED,
    ),
    Overload(
        "aten.linear.default",
        linear,
        forms("M K|N K|N", "B M K|N K", "K|N K|N"),
        bound=contraction(linear, lambda x, *rest: x.shape[-1] + 1),
        **KINDS,
    ),
    Overload(
        "aten.einsum.default",
        einsum,
        tuple(Form(equation, given(axes), (equation,)) for axes, equation in EQUATIONS),
        call=lambda op, *arguments: op(arguments[-1], list(arguments[:-1])),
        bound=contraction(einsum, lambda a, *rest: a.shape[-1]),
        **KINDS,
    ),
)
