"""Which overloads of PyTorch's operator library are compiled, and how: read off the tables that lowering uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from anvil.frontend.normalise.scatter import REWRITES
from anvil.frontend.normalise.spelling import CANONICAL
from anvil.lower import decompose, named
from anvil.lower.generic.ops import table
from anvil.lower.views import REMAPS, WINDOWS
from anvil.lower.virtual import VIRTUAL

aten = torch.ops.aten
State = Literal["covered", "decomposed", "missing", "left out"]

#: Random numbers and training have no place in inference; what returns Python numbers is no tensor program.
_LEFT_OUT = {
    "backward": "gradient",
    "native_dropout": "random",
    "rand": "random",
    "randn": "random",
    "randperm": "random",
    "_local_scalar_dense": "the result is a Python number, not a tensor",
}

#: What is refused by name, in a model run by PyTorch instead.
_MISSING = {
    "_fft_c2r": "complex numbers are no element type",
    "_fft_r2c": "complex numbers are no element type",
    "nonzero": "the size of the result depends on values, not on sizes; a mask says the same",
}

#: Overloads outside of the core that export leaves in real language models.
_IN_MODELS = """
__and__.Tensor __or__.Tensor _unsafe_view.default all.default any.default arange.default arange.start
argsort.stable baddbmm.default batch_norm.default bitwise_left_shift.Tensor bitwise_right_shift.Tensor chunk.default
clamp_max.default clamp_min.default contiguous.default conv1d.default conv2d.default cumprod.default dot.default
einsum.default empty_like.default floor_divide.default group_norm.default hardsigmoid.default hardswish.default
isin.Tensor_Tensor layer_norm.default linear.default log_softmax.int logsumexp.default masked_fill.Scalar
masked_fill.Tensor matmul.default max.default min.default mish.default mv.default narrow.default
new_empty.default new_full.default new_ones.default new_zeros.default one_hot.default ones.default
ones_like.default outer.default repeat_interleave.self_int reshape.default rms_norm.default roll.default
rsub.Scalar rsub.Tensor scaled_dot_product_attention.default silu.default softmax.int softplus.default
split.Tensor square.default stack.default std.correction sum.default t.default take.default transpose.int tril.default
triu.default type_as.default unbind.int var_mean.correction where.Scalar where.ScalarOther where.ScalarSelf
zeros.default zeros_like.default
"""


@dataclass(frozen=True)
class Coverage:
    """One overload: its name as PyTorch prints it, and what becomes of it. ``how`` says where, or why not."""

    name: str
    core: bool
    state: State
    how: str


def coverage() -> list[Coverage]:
    """Every overload with the tag ``core``, those that models have beside them, and all others that are compiled."""
    core = {overload for overload in _overloads() if torch.Tag.core in overload.tags}
    named_in_models = {_overload(name) for name in _IN_MODELS.split()}
    others = {op for op in (*_tables(), *decompose.table()) if isinstance(op, torch._ops.OpOverload)}
    return sorted((_of(op, op in core) for op in core | named_in_models | others), key=lambda row: row.name)


def _overloads() -> list[Any]:
    """All that PyTorch registers; ``dir(aten)`` would list only what somebody has used in this process."""
    registered = [name.split("::") for name in torch._C._dispatch_get_all_op_names()]
    names = {name.partition(".")[0] for library, name in registered if library == "aten"}
    packets = [getattr(aten, name) for name in sorted(names)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload)


def _tables() -> dict[Any, str]:
    """What lowers an overload, by overload."""
    return {
        **dict.fromkeys(REWRITES, "written as a choice, a view or a copy"),
        **dict.fromkeys(CANONICAL, "spelled as another overload"),
        **dict.fromkeys(table(), "generic loop nest"),
        **dict.fromkeys((*REMAPS, *WINDOWS), "view"),
        **dict.fromkeys(VIRTUAL, "computed from positions"),
        **dict.fromkeys(named.table(), "kernel of its own"),
    }


def _of(op: Any, core: bool) -> Coverage:
    name = str(op)
    reason = _left_out(op)
    if reason:
        return Coverage(name, core, "left out", reason)
    how = _tables().get(op)
    if how is not None:
        return Coverage(name, core, "covered", how)
    if op in decompose.table():
        return Coverage(name, core, "decomposed", "written out in other ops")
    if name.startswith("aten.sym_"):
        return Coverage(name, core, "covered", "size of a tensor")
    if decompose.definition(op) is not None:
        return Coverage(name, core, "decomposed", "into what PyTorch says it consists of")
    return Coverage(name, core, "missing", _MISSING.get(name.split(".")[1], ""))


def _left_out(op: Any) -> str:
    name = str(op).split(".")[1]
    if name.endswith("_backward"):
        return _LEFT_OUT["backward"]
    if op._schema.is_mutable:
        return "writes into an argument: in a model, export makes it functional"
    return _LEFT_OUT.get(name, "")
