"""Relations between runs that need no golden. Each holds to the bit, and says so in its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from assay import bounds
from assay.case import Example
from assay.judge import Judge
from assay.strategies.values import INTEGERS

#: Largest smallest normal number of a format that holds products of ordinary values times 2^-8 without underflow.
SCALABLE = 1e-30


@dataclass(frozen=True)
class Property:
    """``check(judge, example)`` raises ``Mismatch`` if the relation does not hold for this example."""

    name: str
    check: Callable[[Judge, Example], None]


def on_axes(
    judge: Judge, tensors: Sequence[torch.Tensor], names: Sequence[str], change: Callable
) -> list[torch.Tensor]:
    """Operands with ``change(tensor, axis)`` applied along every axis that has one of the names."""
    changed = []
    for operand, tensor in zip(judge.spec.operands, tensors, strict=True):
        for axis in (i for i, name in enumerate(operand.axes) if name in names):
            tensor = change(tensor, axis)
        changed.append(tensor)
    return changed


def result_axis(judge: Judge, name: str) -> int:
    return judge.spec.result.split().index(name)


def threads(judge: Judge, example: Example) -> None:
    """1, 2 and 3 threads give the same bits: work is split over outputs, never inside a reduction."""
    inputs = judge.inputs(example)
    one = judge.run(inputs, example)
    for count in (2, 3):
        judge.same(example, f"1 and {count} threads differ", one, judge.run(inputs, example, threads=count))


def causality(judge: Judge, example: Example) -> None:
    """Changing positions from t on, to NaN even, changes no bit before t."""
    axis, n = judge.spec.causal, example.dims[judge.spec.causal]
    if n < 2:
        return
    cut = 1 + example.seed % (n - 1)

    def poison(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.narrow(dim, cut, n - cut).fill_(float("nan"))
        return tensor

    inputs = judge.inputs(example)
    before, after = judge.run(inputs, example), judge.run(on_axes(judge, inputs, axis, poison), example)
    before, after = (np.take(result, range(cut), result_axis(judge, axis)) for result in (before, after))
    judge.same(example, f"position {cut} and later change a result before it", before, after)


def prefix(*names: str) -> Property:
    """The first half alone gives the bits it gives as part of the whole: batch, row and chunk invariance."""

    def check(judge: Judge, example: Example) -> None:
        for name in names:
            half = example.dims[name] // 2
            if not half:
                continue
            inputs = judge.inputs(example)
            part = on_axes(judge, inputs, (name,), lambda t, dim, n=half: t.narrow(dim, 0, n))
            whole = np.take(judge.run(inputs, example), range(half), result_axis(judge, name))
            judge.same(example, f"{name} halved changes the first half", whole, judge.run(part, example))

    return Property(f"prefix of {', '.join(names)}", check)


def reversal(*names: str) -> Property:
    """Reversing these axes together, in operands and result, changes nothing: entries along them are independent."""

    def check(judge: Judge, example: Example) -> None:
        inputs = judge.inputs(example)
        turned = on_axes(judge, inputs, names, lambda t, dim: t.flip(dim))
        result = judge.run(turned, example)
        for axis, name in enumerate(judge.spec.result.split()):
            result = np.flip(result, axis) if name in names else result
        judge.same(example, f"reversing {', '.join(names)} changes a result", judge.run(inputs, example), result)

    return Property(f"reversal of {', '.join(names)}", check)


def scaling(operand: str) -> Property:
    """The op is linear in ``operand``: 2^k times it gives exactly 2^k times the result.

    Not asked of formats whose exponent range ordinary values times 2^±8 leave.
    """

    def check(judge: Judge, example: Example) -> None:
        if judge.case.format.smallest_normal > SCALABLE:
            return
        inputs = judge.inputs(example)
        factor = 2.0 ** (example.seed % 17 - 8)
        scaled = list(inputs)
        scaled[judge.spec.operand(operand)] = inputs[judge.spec.operand(operand)] * factor
        want = judge.run(inputs, example) * factor
        judge.same(example, f"{operand} times {factor} does not scale exactly", want, judge.run(scaled, example))

    return Property(f"scaling of {operand}", check)


def repeated_heads(judge: Judge, example: Example) -> None:
    """Grouped heads equal full heads over repeated keys and values (repeat in place, not tile)."""
    inputs, heads, keys = judge.inputs(example), example.dims["H"], example.dims["K"]
    if heads == keys:
        return
    repeated = on_axes(judge, inputs, "K", lambda t, dim: t.repeat_interleave(heads // keys, dim))
    full = replace(example, dims={**example.dims, "K": heads})
    judge.same(example, "grouped and repeated heads differ", judge.run(inputs, example), judge.run(repeated, full))


def packed_plain(judge: Judge, example: Example) -> None:
    """A weight as PyTorch holds it gives what the repacked one gives.

    To the bit on operands that need no rounding (or where the op only moves bits); elsewhere inside the bound, because
    a kernel over another layout may add in another order.
    """
    inputs = judge.inputs(example)
    plain = judge.run(inputs, example, plain=True)
    judge.require(judge.verdict(plain, inputs, example), example, inputs)
    exact = replace(example, values=INTEGERS) if judge.spec.exact else example
    if judge.spec.exact or judge.spec.bound is bounds.exact:
        inputs = judge.inputs(exact)
        packed, plain = judge.run(inputs, exact), judge.run(inputs, exact, plain=True)
        judge.same(exact, "packed and plain weights differ", packed, plain)


THREADS = Property("threads", threads)
CAUSALITY = Property("causality", causality)
REPEATED_HEADS = Property("repeated heads", repeated_heads)
PACKED_PLAIN = Property("packed and plain", packed_plain)
