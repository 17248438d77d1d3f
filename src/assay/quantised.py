"""Specs in a quantisation mode: the same op against the same integers and scales, dequantised, in float64.

That is the first of the two questions of docs/correctness.md; :func:`check_cost` answers the second. One generic form
over all modes of :mod:`assay.reference.quantise`: golden, bound, exact operands, and weights awkward to quantise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from assay import bounds, reference
from assay.bounds import Setting
from assay.case import Example, arrays, materialise
from assay.compare import Mismatch
from assay.reference.quantise import MODES, QUANTISED, TABLES
from assay.spec import Known, Operand
from assay.strategies.shapes import Dims

if TYPE_CHECKING:
    from assay.judge import Judge

Generator = np.random.Generator

#: Roundings of w8a8 after its exact sum: the sum to f32, times the scale of the output, of the row with the bias.
ROUNDINGS = 3


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, quant: str) -> np.ndarray:
    """reference.linear over what the mode makes of weights and activations."""
    return reference.linear(*seen(quant, x, w), b)


def seen(quant: str, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Activations and weights as the mode computes with them."""
    mode = MODES[quant]
    return x if mode.activations is None else mode.activations(x), mode.weights(w)


def linear_bound(
    setting: Setting, want: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, quant: str
) -> np.ndarray:
    """The bound of linear and u_acc·S, for modes that round each weight to f32. Where activations are integers too,
    sums are exact: ROUNDINGS·u_acc·|y − b| and one rounding of y, and what the golden itself rounds, K·u64·S."""
    own, weights = seen(quant, x, w)
    size = reference.linear(np.abs(own), np.abs(weights))
    if MODES[quant].activations is not None:
        product = np.abs(reference.linear(own, weights))
        golden = x.shape[-1] * 2.0**-53 * size
        return ROUNDINGS * setting.acc.u * product + setting.rounding(want) + ROUNDINGS * setting.eta + golden
    if b is not None:  # sums that start at a bias much larger than they are no longer zero-mean
        setting = replace(setting, zero_mean=False)
    return bounds.linear(setting, want, own, weights, b) + setting.acc.u * size


def embedding(ids: np.ndarray, w: np.ndarray, *, quant: str) -> np.ndarray:
    """Rows of the dequantised table."""
    return reference.embedding(ids, MODES[quant].weights(w))


def integer_weights(rng: Generator, shape: tuple[int, int], quant: str) -> np.ndarray:
    """[N, K] weights that the mode holds exactly: every group has its extremes, so that the scale is one unit."""
    mode = MODES[quant]
    low, high = mode.integers
    w = rng.integers(low, high + 1, shape)
    for first in range(0, shape[1], mode.group or max(shape[1], 1)) if mode.group != 1 else ():
        if -low >= high:  # a scale and no zero point: the larger end decides
            w[:, first] = low
        elif first + 1 < shape[1]:
            w[:, first], w[:, first + 1] = low, high
        else:
            w[:, first] = high - low  # beside the zeros that fill up the group
    return w * mode.unit


def exact_linear(rng: Generator, d: Dims, *, quant: str, bias: bool = False) -> tuple[np.ndarray, ...]:
    """Operands for which every partial sum is an integer below 2^24: K · 3937 · 7 for the largest K drawn."""
    x = rng.integers(-7, 8, (d["M"], d["K"]))
    if MODES[quant].activations is not None and d["K"]:
        x = rng.integers(-127, 128, x.shape)
        x[:, 0] = 127  # the scale of a row is 1
    operands = x, integer_weights(rng, (d["N"], d["K"]), quant)
    return (*operands, rng.integers(-1000, 1000, (d["N"],))) if bias else operands


def ties_to_even() -> Known:
    """A row whose scale is 1, with halves in it: 0.5, 1.5, 2.5 become 0, 2, 2; output i is 127² and the i-th code."""
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]], np.float32)
    w = np.eye(8, dtype=np.float32)
    w[:, 0] = 127
    right = 127.0**2 + np.array([[0, 0, 2, 2, 0, -2, -2, 126]])
    return Known("ties go to even", (x, w), right)


def awkward(rng: Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Weights of which neighbouring outputs are: normal, all zero, all equal, ties, positive, with one spike, and of
    another magnitude in each group."""
    w = rng.standard_normal(shape, np.float32)
    w[1::7] = 0
    w[2::7] = rng.standard_normal()
    w[3::7] = rng.integers(-15, 16, w[3::7].shape) / np.float32(2)
    w[4::7] = np.abs(w[4::7]) + np.float32(1)
    if w.size:
        w[5::7, rng.integers(shape[-1])] *= 100
    w[6::7] *= np.exp2(-(np.arange(shape[-1]) // 16 % 9)).astype(np.float32)
    return w


def linear_in_mode(operands: tuple[Operand, ...], properties: tuple, quant: str) -> Mapping[str, Any]:
    """What of the spec of linear is another in a mode."""
    with_bias = len(operands) > 2
    x, w, *rest = operands
    return {
        "golden": partial(linear, quant=quant),
        "bound": partial(linear_bound, quant=quant),
        "operands": (x, Operand(w.name, w.dims, role="weight", fill=awkward), *rest),
        "exact": partial(exact_linear, quant=quant, bias=with_bias),
        "properties": properties,
        "known": (ties_to_even(),) if MODES[quant].activations is not None and not with_bias else (),
        "unquantised": reference.linear,
        "large": {"M": 4, "N": 48, "K": 1024},
    }


def embedding_in_mode(operands: tuple[Operand, ...], properties: tuple, quant: str) -> Mapping[str, Any]:
    """What of the spec of embedding is another in a mode. Weights are rounded to f32 once, so the bound stays 0."""
    ids, w = operands
    return {
        "golden": partial(embedding, quant=quant),
        "operands": (ids, Operand(w.name, w.dims, role="weight", fill=awkward)),
        "properties": properties,
        "unquantised": reference.embedding,
        "large": {"M": 24, "V": 48, "D": 1024},
        "signed_zero": False,  # minus zero times a scale, or zero minus zero: formats have no sign of zero
    }


def layer_in_mode(golden: Callable[..., np.ndarray], properties: tuple, quant: str) -> Mapping[str, Any]:
    """What of a layer's spec is another in a mode: the running error analysis takes the mode from its setting."""
    return {"golden": partial(golden, quant=quant), "properties": properties}


def check_cost(judge: Judge, example: Example) -> None:
    """What quantisation costs on normal data, against the golden without it: mean squared error over mean square.

    Less than a quarter of what the mode is known to cost means that it was silently not applied; more than twice as
    much, that it is broken. Raises ``Mismatch``.
    """
    spec, low, high = judge.spec, MODES[judge.case.quant].cost / 4, MODES[judge.case.quant].cost * 2
    operands = tuple(replace(o, fill=None) if o.role == "weight" else o for o in spec.operands)
    inputs = materialise(replace(spec, operands=operands), judge.case.format, example)
    assert spec.unquantised is not None, f"{spec.name} in {judge.case.quant}: no golden without the mode"
    got, want = judge.run(inputs, example), spec.unquantised(*arrays(inputs))
    cost = float(np.mean((got - want) ** 2) / np.mean(want**2))
    judge.tally.headroom = max(judge.tally.headroom, cost / high)
    if not low <= cost <= high:
        what = "quantisation was not applied" if cost < low else "quantisation costs too much"
        size = f"NMSE {cost:.2e}, allowed {low:.1e} to {high:.1e} (assay/reference/quantise.py)"
        raise Mismatch(judge.report(example, what, worst=size))


__all__ = ["QUANTISED", "TABLES", "check_cost", "embedding_in_mode", "layer_in_mode", "linear_in_mode"]
