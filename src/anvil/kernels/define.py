"""From a Python function that emits operations to a :class:`Kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from anvil import mlir
from anvil.dtypes import memory_name
from anvil.kernels.base import Kernel, Kind, Param
from anvil.kernels.dsl import Ref, Val
from anvil.mlir import InsertionPoint, ir


@dataclass(frozen=True)
class Argument:
    """A kernel parameter and its MLIR type."""

    param: Param
    type: str


def memref(
    name: str,
    kind: Kind,
    dtype: str,
    rank: int,
    *,
    inner: tuple[int, ...] = (),
    unit: bool = True,
    layout: str = "plain",
) -> Argument:
    """A strided memref. ``inner``: static trailing sizes, dense; ``unit``: the innermost stride is 1."""
    sizes = ["?"] * (rank - len(inner)) + [str(size) for size in inner]
    known = [str(prod(inner[axis:])) for axis in range(len(inner) + 1)][-rank:] if unit else []
    strides = ["?"] * (rank - len(known)) + known
    shape = "x".join([*sizes, memory_name(dtype)])
    text = f"memref<{shape}, strided<[{', '.join(strides)}], offset: ?>>"
    return Argument(Param(name, kind, dtype, rank, layout), text)


def scalar(name: str, dtype: str) -> Argument:
    return Argument(Param(name, "scalar", dtype, -1), dtype)


def define(
    name: str,
    arguments: Sequence[Argument],
    body: Callable[..., None],
    *,
    edges: Sequence[tuple[str, int]] = (),
) -> Kernel:
    """The kernel ``name``; ``body`` is called with a Ref or Val per argument, then ``tid`` and ``nthreads``."""
    with mlir.context(), mlir.Location.unknown():
        types = [ir.Type.parse(argument.type) for argument in arguments] + [ir.IndexType.get()] * 2
        module = mlir.Module.create()
        with InsertionPoint(module.body):
            function = mlir.func.FuncOp(name, (types, []))
        with InsertionPoint(function.add_entry_block()):
            values = list(function.arguments)
            wrapped = [Ref(v) if isinstance(v.type, ir.MemRefType) else Val(v) for v in values]
            body(*wrapped)
            mlir.func.ReturnOp([])
        module.operation.verify()
        return Kernel(name, tuple(argument.param for argument in arguments), str(module), tuple(edges))
