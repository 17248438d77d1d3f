"""Symbolic sizes: fake tensors whose dimensions are named B, S, ..., and their flow through a graph.

PyTorch's own exporter names sizes s23, s77; programs here carry the user's names, so that messages, plans and IR
read ``f32[B, S, 576]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, ValueRangesSLoc
from torch.fx.node import map_aggregate
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from anvil.errors import InputError
from anvil.graph.inference import infer, value_of
from anvil.graph.program import GraphProgram

# Metadata is computed for the general case: a symbolic size is at least 2, so that no size is taken for a broadcast
# dimension. The graph itself is right for size 1 too.
_GENERAL_MINIMUM = 2


def fake_mode() -> FakeTensorMode:
    """A mode in which named symbolic sizes can be made."""
    return FakeTensorMode(shape_env=ShapeEnv(specialize_zero_one=False, duck_shape=False))


def mode_of(program: GraphProgram) -> FakeTensorMode:
    """The mode that the metadata of ``program`` lives in."""
    for node in program.module.graph.nodes:
        if node.op == "placeholder":
            return node.meta["val"].fake_mode
    raise InputError(f"program {program.name!r} has no inputs and no parameters: there is nothing to compile")


def symbolic_size(mode: FakeTensorMode, name: str, hint: int, maximum: int | None = None) -> torch.SymInt:
    """The size called ``name``; one symbol per name and mode. ``hint`` is a typical value."""
    env = mode.shape_env
    if not name[:1].isupper() or name[0] in "UZ":  # PyTorch tells kinds of symbols by their first letter
        raise InputError(f"name of a dynamic size is {name!r}: expected an upper-case letter first, other than U and Z")
    symbol = sympy.Symbol(name, positive=True, integer=True)
    if symbol not in env.var_to_range:
        location = env._get_sloc()
        upper = int_oo if maximum is None else sympy.Integer(maximum)
        env.var_to_range[symbol] = ValueRanges(sympy.Integer(_GENERAL_MINIMUM), upper)
        env.var_to_range_sloc[symbol] = ValueRangesSLoc(location, location)
        env.backed_var_to_val[symbol] = sympy.Integer(hint)
        env.var_to_sources[symbol] = [ConstantSource(name)]
        env.source_to_var[name] = symbol
    return env.create_symintnode(symbol, hint=int(env.backed_var_to_val[symbol]))


def symbol_name(size: int | torch.SymInt) -> str | None:
    """``"B"`` when ``size`` is exactly the symbolic size B; None for numbers and expressions."""
    if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
        return size.node.expr.name
    return None


def fake_tensor(mode: FakeTensorMode, shape: Sequence[int | torch.SymInt], dtype: torch.dtype) -> torch.Tensor:
    """A dense tensor without data."""
    with mode:
        return torch.empty(tuple(shape), dtype=dtype)


def fake_copy(mode: FakeTensorMode, tensor: torch.Tensor, names: Mapping[int, str | None]) -> torch.Tensor:
    """A fake of ``tensor`` whose dimensions in ``names`` are symbolic, the others as they are."""
    if not names:
        return mode.from_tensor(tensor.detach(), static_shapes=True)
    shape = [
        symbolic_size(mode, name, hint=size) if (name := names.get(dim)) else size
        for dim, size in enumerate(tensor.shape)
    ]
    return fake_tensor(mode, shape, tensor.dtype)


def propagate(module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Recompute ``meta["val"]`` of every call from the placeholders' metadata.

    Raises InputError if the graph turns out to hold only for particular values of a symbolic size.
    """
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta["val"] = infer(mode, node.target, node.args, node.kwargs)
        elif node.op == "output":
            node.meta["val"] = map_aggregate(node.args[0], value_of)
        elif node.op != "placeholder":
            raise InputError(f"propagating shapes: {node.op} {node.target}, expected calls of functions only")
    if fixed := {str(symbol): value for symbol, value in mode.shape_env.replacements.items()}:
        raise InputError(f"symbolic sizes were fixed while propagating shapes: {fixed}; expected them to stay free")
