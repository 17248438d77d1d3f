"""A compiled program: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from anvil.codegen import Library
from anvil.errors import InputError
from anvil.graph.program import GraphProgram
from anvil.runtime.executable import Executable
from anvil.runtime.plan import Plan, Size
from anvil.runtime.signature import Signature, Spec


@dataclass
class CompiledProgram:
    """Callable like the captured function: its inputs in order, any strides, any sizes in range.

    ``weights`` names the inputs that are packed at each call instead of being read as they are. ``compile_ms`` has
    the time of each stage of the compilation.
    """

    plan: Plan
    library: Library
    inputs: tuple[str, ...]
    signature: Signature
    executable: Executable
    compile_ms: dict[str, float] = field(default_factory=dict)

    def __call__(self, *inputs: torch.Tensor, threads: int = 1, timeout: float | None = None) -> list[torch.Tensor]:
        """Outputs as new dense tensors. Raises :class:`InputError` for tensors that do not fit the program and
        :class:`anvil.errors.KernelError` when a kernel crashes."""
        arguments = self._named(inputs)
        return self.executable.run(self.signature.solve(arguments), arguments, threads=threads, timeout=timeout)

    def trace(
        self, inputs: Sequence[torch.Tensor], nodes: Sequence[str], *, threads: int = 1
    ) -> dict[str, torch.Tensor]:
        """Values of the named graph nodes; see :meth:`anvil.runtime.executable.Executable.trace`."""
        arguments = self._named(inputs)
        return self.executable.trace(self.signature.solve(arguments), arguments, nodes, threads=threads)

    def _named(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        if len(inputs) != len(self.inputs):
            raise InputError(f"running {self.plan.name}: got {len(inputs)} inputs, expected {list(self.inputs)}")
        return dict(zip(self.inputs, inputs, strict=True))

    @property
    def edges(self) -> Mapping[str, int]:
        """Sizes at which the schedules of the program's kernels change, by dimension name; the largest wins."""
        merged: dict[str, int] = {}
        for kernel in self.plan.kernels.values():
            for dimension, size in kernel.edges:
                merged[dimension] = max(size, merged.get(dimension, 0))
        return merged


def as_weights(program: GraphProgram, names: Sequence[str]) -> GraphProgram:
    """``program`` with the named inputs declared parameters whose values are not known yet."""
    unknown = [name for name in names if name not in program.inputs]
    if unknown:
        raise InputError(f"compiling {program.name}: weights {unknown} are not among its inputs {list(program.inputs)}")
    values = {node.name: node.meta["val"] for node in program.module.graph.find_nodes(op="placeholder")}
    return replace(
        program,
        inputs=tuple(name for name in program.inputs if name not in names),
        params={**program.params, **{name: values[name] for name in names}},
        paths={**program.paths, **{name: name for name in names}},
    )


def signature_of(program: GraphProgram) -> Signature:
    """What the captured program accepts."""
    specs = {}
    for node in program.module.graph.find_nodes(op="placeholder"):
        if node.target in program.inputs:
            value = node.meta["val"]
            specs[str(node.target)] = Spec(tuple(_size(size) for size in value.shape), value.dtype)
    return Signature(program.name, {name: specs[name] for name in program.inputs}, program.symbols)


def _size(value: int | torch.SymInt) -> Size:
    return value if isinstance(value, int) else value.node.expr
