"""The arguments of a nest's kernel: which memrefs and scalars, in which order, with what strides known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anvil.dtypes import memory_name
from anvil.kernels.base import Param
from anvil.kernels.define import Argument
from anvil.lower.generic.linalg_builder import signature
from anvil.lower.generic.nest import Access, Nest
from anvil.lower.generic.steps import Step
from anvil.lower.sizes import same
from anvil.runtime.plan import Scalar, View

NO_LOOP = -1


@dataclass(frozen=True)
class Operand:
    """A memref argument: the loop behind each of its dimensions (the vector loop last), and how its lanes lie."""

    name: str
    dtype: str
    loops: tuple[int, ...]
    view: View
    access: Access
    written: bool

    def argument(self) -> Argument:
        """Parameter and MLIR type: all sizes and strides at run time, but an innermost stride known to be 1."""
        rank = len(self.loops)
        strides = ["?"] * rank
        if self.access == "unit":
            strides[-1] = "1"
        shape = "x".join(["?"] * rank + [memory_name(self.dtype)])
        kind = f"memref<{shape}, strided<[{', '.join(strides)}], offset: ?>>"
        return Argument(Param(self.name, "out" if self.written else "in", self.dtype, rank), kind)

    def as_unit(self) -> Operand:
        return replace(self, access="unit")


def memrefs(nest: Nest) -> list[Operand]:
    """The memref arguments, in order: what is read, then what is written."""
    read = [(step, nest.steps[step].view) for step in signature(nest).inputs]
    found = [_operand(nest, f"x{i}", step, view, written=False) for i, (step, view) in enumerate(read) if view]
    written = zip(nest.stores, nest.targets, strict=True)
    return found + [_operand(nest, f"y{i}", step, target, written=True) for i, (step, target) in enumerate(written)]


def _operand(nest: Nest, name: str, step: int, view: View, *, written: bool) -> Operand:
    if nest.steps[step].kind == "gather" and not written:
        return _gathered(nest, name, nest.steps[step], view)
    loops = nest.steps[step].loops
    order = sorted(range(len(loops)), key=lambda position: loops[position] == nest.vector)
    sizes, strides = (tuple(part[position] for position in order) for part in (view.sizes, view.strides))
    turned = View(view.buffer, view.offset, sizes, strides)
    loops_turned = tuple(loops[position] for position in order)
    return Operand(name, nest.steps[step].dtype, loops_turned, turned, nest.access(loops, view), written)


def _gathered(nest: Nest, name: str, step: Step, view: View) -> Operand:
    """What is gathered from keeps its own dimensions, none of which is a loop."""
    access = "unit" if view.strides and same(view.strides[-1], 1) else "uniform"
    return Operand(name, step.dtype, (NO_LOOP,) * len(view.sizes), view, access, False)


def scalars(nest: Nest) -> list[Scalar]:
    """The scalar arguments, in order, with their values: numbers, then sizes of loops."""
    kinds = signature(nest)
    steps = [nest.steps[step] for step in kinds.scalars]
    return [*(Scalar(step.size, step.dtype) for step in steps), *(Scalar(nest.sizes[i], "index") for i in kinds.loops)]


def scalar_arguments(nest: Nest) -> list[Argument]:
    return [Argument(Param(f"n{i}", "scalar", s.dtype, -1), s.dtype) for i, s in enumerate(scalars(nest))]
