"""Compilers whose quantised linear layer has one fault each, in PyTorch: what the checks of a mode must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from faulty_compilers import ROOT, Wrong

from assay.backends.protocol import Program
from assay.backends.torch_eager import EagerBackend, EagerCompiled
from assay.bench import Bench
from assay.case import Case
from assay.explore import PROFILES
from assay.formats import F32
from assay.judge import Judge
from assay.reference.quantise import MODES
from assay.spec import registry

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class QuantisingBackend(EagerBackend):
    """A compiler that knows one mode, and computes ``function`` for every program in it."""

    name: str = "quantising"
    function: Linear = torch.nn.functional.linear

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        return replace(super().compile(program, target), module=Wrong(self.function))


def judge_of(mode: str, function: Linear, examples: int = 60) -> Judge:
    """The judge of linear in ``mode``, compiled to ``function``."""
    case = Case(registry(ROOT / "ops")["linear"].in_mode(mode), F32, "host", mode)
    bench = Bench.of(QuantisingBackend(function=function))
    return Judge(bench, case, PROFILES["ci"], f"ops/test_ops.py::linear_{mode}", examples=examples)


def right(mode: str) -> Linear:
    """Without a fault: in float64, rounded once."""

    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rule = MODES[mode].activations
        rows = x.double() if rule is None else torch.from_numpy(rule(x.numpy()))
        return (rows @ torch.from_numpy(MODES[mode].weights(w.numpy())).T).float()

    return linear


def over_weights(mode: str, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Linear:
    """The right product over ``change(dequantised weights f64, original weights)``."""
    return lambda x, w: (x.double() @ change(torch.from_numpy(MODES[mode].weights(w.numpy())), w).T).float()


def codes_of(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x / scale in f32, 0 for 0 / 0."""
    return (x / scale).nan_to_num(0, 0, 0)


def row_scale(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(-1, keepdim=True) / 127 if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)


def integers(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return codes_of(x, scale).round().clamp(-127, 127)


def w8a8(
    x: torch.Tensor,
    w: torch.Tensor,
    scale: Callable[[torch.Tensor], torch.Tensor] = row_scale,
    rounding: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = integers,
    dot: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda a, b: a.double() @ b.double().T,
) -> torch.Tensor:
    """The whole of w8a8, each step of which may be replaced."""
    of_x, of_w = scale(x), row_scale(w)
    return (dot(rounding(x, of_x), integers(w, of_w)) * of_x.double() * of_w.double().T).float()


def per_tensor(x: torch.Tensor) -> torch.Tensor:
    """One activation scale for all rows."""
    most = x.abs().max() if x.numel() else torch.tensor(0.0)
    return (most / 127).expand(*x.shape[:-1], 1)


def truncating(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Towards zero, as a plain conversion to integer does."""
    return codes_of(x, scale).trunc().clamp(-127, 127)


def half_away(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Ties away from zero instead of to even."""
    q = codes_of(x, scale)
    return (q.sign() * (q.abs() + 0.5).floor()).clamp(-127, 127)


def saturating_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Unsigned activations (offset 128) times weights, pairs added in 16 bits that saturate: pmaddubsw used wrongly."""
    pad = a.shape[-1] % 2
    left, right = (torch.nn.functional.pad(t.double(), (0, pad)) for t in (a, b))
    products = (left[:, None] + 128) * right[None]
    pairs = products.unflatten(-1, (-1, 2)).sum(-1).clamp(-32768, 32767)
    return pairs.sum(-1) - 128 * right.sum(-1)


def wrapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """q4_0 whose codes wrap at 8 steps instead of saturating at 7."""
    groups = torch.nn.functional.pad(w, (0, -w.shape[1] % 32)).unflatten(1, (-1, 32))
    peak = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    scale = (peak / -8).half().float()
    codes = (codes_of(groups, scale).round() + 8) % 16 - 8
    return (x.double() @ (codes * scale).double().flatten(1)[:, : w.shape[1]].T).float()


def swapped_nibbles(exact: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The two inputs of each byte exchanged."""
    whole = exact.shape[1] // 2 * 2
    swapped = exact[:, :whole].unflatten(1, (-1, 2)).flip(2).flatten(1)
    return torch.cat([swapped, exact[:, whole:]], 1)


def without_zero_point(exact: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """scale code instead of scale (code - zero)."""
    groups = torch.nn.functional.pad(w, (0, -w.shape[1] % 32)).unflatten(1, (-1, 32))
    low, high = groups.amin(2, keepdim=True).clamp(max=0), groups.amax(2, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).half().float()
    zero = codes_of(-low, scale).round().clamp(0, 15)
    return exact + (zero * scale).double().expand_as(groups).flatten(1)[:, : w.shape[1]]


def scale_along_inputs(exact: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """w8 with the scale of output k at input k: right only for one output, or where all scales are equal."""
    scale = row_scale(w).double()
    codes = torch.where(scale > 0, exact / scale, exact)
    along = scale[torch.arange(w.shape[1]) % max(len(scale), 1), 0] if len(scale) else scale.new_zeros(w.shape[1])
    return codes * along


def odd_block_dropped(exact: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Blocks taken two at a time; a last one without partner is left out."""
    result = exact.clone()
    result[:, exact.shape[1] // 64 * 64 :] = 0
    return result


def read_as_half(exact: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The bits of bf16 weights taken for f16."""
    return w.bfloat16().view(torch.float16).double()


#: (fault, mode, linear layer with it, the check that catches it, what its report must say).
QUANTISED_FAULTS = [
    ("a scale per tensor", "w8a8", lambda x, w: w8a8(x, w, scale=per_tensor), "bound", "outside its bound"),
    ("a scale per tensor", "w8a8", lambda x, w: w8a8(x, w, scale=per_tensor), "rows", "first half"),
    ("truncation", "w8a8", lambda x, w: w8a8(x, w, rounding=truncating), "bound", "outside its bound"),
    ("ties away from zero", "w8a8", lambda x, w: w8a8(x, w, rounding=half_away), "known", "outside its bound"),
    ("pairs that saturate", "w8a8", lambda x, w: w8a8(x, w, dot=saturating_pairs), "exact", "outside its bound"),
    ("activations not rounded", "w8a8", right("w8"), "bound", "outside its bound"),
    ("missing saturation", "q4_0", wrapped, "bound", "outside its bound"),
    ("swapped nibbles", "w4-g32", over_weights("w4-g32", swapped_nibbles), "exact", "outside its bound"),
    ("zero point ignored", "w4-g32z", over_weights("w4-g32z", without_zero_point), "exact", "outside its bound"),
    ("a scale along the inputs", "w8", over_weights("w8", scale_along_inputs), "bound", "outside its bound"),
    ("an odd block dropped", "q4_1", over_weights("q4_1", odd_block_dropped), "exact", "outside its bound"),
    ("bf16 read as fp16", "bf16", over_weights("bf16", read_as_half), "exact", "outside its bound"),
    ("not quantised at all", "w8", torch.nn.functional.linear, "cost", "quantisation was not applied"),
    ("not quantised at all", "w4-g128", torch.nn.functional.linear, "bound", "outside its bound"),
]
