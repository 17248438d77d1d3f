"""Tensors made from sizes and numbers. The argument gives sizes and type; its values are not read."""

from __future__ import annotations

import numpy as np

from assay.overloads.spec import Form, Given, Overload

X = (Given(),)
ROW = (Given("N"),)
RANKS = (Form("matrix", X), Form("rank 0", (Given(""),)), Form("cube", (Given("K M N"),)))


def numbers(*values, tensors=X) -> tuple[Form, ...]:
    return tuple(Form(f"of {value!r}", tensors, (value,)) for value in values)


def whole(x, value):
    return np.full(x.shape, value).astype(x.dtype)


def positions(x, start=0, step=1):
    return (start + step * np.arange(x.shape[0])).astype(x.dtype)


def wrapped(x, end):
    """As PyTorch counts: in i64, then in the type."""
    return np.arange(x.shape[0]).astype(x.dtype)


def like(value):
    return lambda x: np.full(x.shape, value, x.dtype)


OVERLOADS = (
    Overload("aten.full.default", whole, numbers(3, 1), call=lambda op, x, v: op(x.shape, v, dtype=x.dtype)),
    Overload("aten.full_like.default", whole, (*numbers(3, 1), Form("rank 0", (Given(""),), (2,)))),
    Overload("aten.new_full.default", whole, numbers(3, 1), call=lambda op, x, v: op(x, x.shape, v)),
    Overload("aten.zeros.default", like(0), RANKS, call=lambda op, x: op(x.shape, dtype=x.dtype)),
    Overload("aten.ones.default", like(1), RANKS, call=lambda op, x: op(x.shape, dtype=x.dtype)),
    Overload("aten.zeros_like.default", like(0), RANKS),
    Overload("aten.ones_like.default", like(1), RANKS),
    Overload("aten.new_zeros.default", like(0), RANKS, call=lambda op, x: op(x, x.shape)),
    Overload("aten.new_ones.default", like(1), RANKS, call=lambda op, x: op(x, x.shape)),
    Overload(
        "aten.scalar_tensor.default",
        lambda x, v: np.asarray(v).astype(x.dtype),
        numbers(3, 1),
        call=lambda op, x, v: op(v, dtype=x.dtype),
    ),
    Overload(
        "aten.arange.default",
        lambda x: positions(x),
        (Form("to N", ROW),),
        call=lambda op, x: op(x.shape[0], dtype=x.dtype),
        without={"bool": "PyTorch makes at most two"},
    ),
    Overload(
        "aten.arange.start",
        lambda x: positions(x, 3),
        (Form("from 3", ROW),),
        call=lambda op, x: op(3, 3 + x.shape[0], dtype=x.dtype),
        without={"bool": "PyTorch makes at most two"},
    ),
    Overload(
        "aten.arange.start_step",
        lambda x: positions(x, 3, 2),
        (Form("from 3 by 2", ROW),),
        call=lambda op, x: op(3, 3 + 2 * x.shape[0], 2, dtype=x.dtype),
        without={"bool": "PyTorch makes at most two"},
    ),
)
