"""Matrix products without a schedule of their own: one fused multiply-add per term, terms in order."""

from __future__ import annotations

from string import ascii_lowercase

import torch

from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.num import Num
from anvil.lower.generic.ops.reduction import accumulator
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value

aten = torch.ops.aten


def contract(region: Region, equation: str, x: Operand, y: Operand, dtype: str) -> Value:
    """An einsum of two tensors such as ``bmk,bkn->bmn``: every letter is a loop, letters not in the result are summed.

    Sums are held in f32 for f16 and bf16, else in the operands' type; the result is rounded once to ``dtype``.
    """
    inputs, _, output = equation.partition("->")
    letters_x, letters_y = inputs.split(",")
    left, right = region.load(x, apart=True), region.load(y, apart=True)
    loops = dict(zip(letters_x, left.axes, strict=True))
    for letter, axis in zip(letters_y, right.axes, strict=True):
        known = loops.setdefault(letter, axis)
        if known is not None and axis is not None:
            region.join(known, axis)
    region.require_apart(loops.values())
    order = list(dict.fromkeys(output + letters_x + letters_y))
    wide = accumulator(x.dtype)
    factors = [
        _spread(region.convert(value, wide), letters, order)
        for value, letters in ((left, letters_x), (right, letters_y))
    ]
    summed = [position for position, letter in enumerate(order) if letter not in output]
    return region.convert(region.reduce("sum_of_products", factors, summed), dtype)


def _spread(value: Value, letters: str, order: list[str]) -> Value:
    """``value`` with one dimension per letter of ``order``, of size 1 where it has none."""
    dims = [letters.index(letter) if letter in letters else None for letter in order]
    return value.remap(dims, [1 if dim is None else value.shape[dim] for dim in dims])


def _product(equation: str, first: str, second: str) -> Build:
    def build(region: Region, call: Call) -> Value:
        return contract(region, equation, call[first], call[second], call.dtype)

    return build


def _product_plus(equation: str, first: str, second: str) -> Build:
    """beta · self + alpha · product."""

    def build(region: Region, call: Call) -> Value:
        wide = accumulator(call.dtype)
        product = contract(region, equation, call[first], call[second], wide)

        def element(total: Num, bias: Num) -> Num:
            return (bias.to(wide) * call["beta"] + total * call["alpha"]).to(call.dtype)

        return region.map(element, [product, call["self"]], call.shape, call.dtype)

    return build


def _linear(region: Region, call: Call) -> Value:
    """x · wᵀ + b for a weight that is not a parameter of the model."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    rows = ascii_lowercase[: len(x.shape) - 1]
    out = "n" if len(weight.shape) > 1 else ""
    wide = accumulator(call.dtype)
    product = contract(region, f"{rows}z,{out}z->{rows}{out}", x, weight, wide if bias is not None else call.dtype)
    if bias is None:
        return product
    return region.map(lambda total, b: (total + b.to(wide)).to(call.dtype), [product, bias], call.shape, call.dtype)


def _matmul(region: Region, call: Call) -> Value:
    """PyTorch's matmul: vectors, matrices, and batches that broadcast."""
    x, y = call["self"], call["other"]
    batch = ascii_lowercase[: max(len(x.shape), len(y.shape), 2) - 2]
    left = batch[len(batch) - max(len(x.shape) - 2, 0) :] + ("xz" if len(x.shape) > 1 else "z")
    right = batch[len(batch) - max(len(y.shape) - 2, 0) :] + ("zy" if len(y.shape) > 1 else "z")
    result = batch + ("x" if len(x.shape) > 1 else "") + ("y" if len(y.shape) > 1 else "")
    return contract(region, f"{left},{right}->{result}", x, y, call.dtype)


OPS: dict[object, Build] = {
    aten.mm.default: _product("mk,kn->mn", "self", "mat2"),
    aten.bmm.default: _product("bmk,bkn->bmn", "self", "mat2"),
    aten.mv.default: _product("mk,k->m", "self", "vec"),
    aten.dot.default: _product("k,k->", "self", "tensor"),
    aten.addmm.default: _product_plus("mk,kn->mn", "mat1", "mat2"),
    aten.baddbmm.default: _product_plus("bmk,bkn->bmn", "batch1", "batch2"),
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
}
