"""Compiles and runs small PyTorch functions through the whole lowering, for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from anvil import codegen, targets
from anvil.frontend.capture import capture
from anvil.frontend.stages import NORMALISE
from anvil.graph.program import GraphProgram
from anvil.lower import lower
from anvil.runtime import open_executor
from anvil.runtime.executable import Executable
from anvil.runtime.memory import Memory
from anvil.runtime.pack import Packer
from anvil.runtime.program import signature_of


@functools.cache
def executor(target: str, isolated: bool = False):
    """One executor per target for the whole test run."""
    return open_executor(targets.get(target), isolated=isolated)


class Lowered:
    """A program compiled for ``target``; called like the captured function, with tensors of any size."""

    def __init__(
        self,
        program: GraphProgram,
        *,
        target: str = "x86_64-avx2",
        guard: bool = False,
        isolated: bool = False,
        **options,
    ) -> None:
        self.program = program
        self.plan = lower(program, targets.get(target), **options)
        library = codegen.compile_library(self.plan.kernels.values(), targets.get(target))
        memory = Memory(executor(target, isolated), library)
        pack = Packer("fp32", targets.get(target))
        self._run = Executable(self.plan, memory, pack=pack, params=program.params, guard=guard)
        self._signature = signature_of(program)

    def __call__(self, *inputs: torch.Tensor, threads: int = 1) -> torch.Tensor | list[torch.Tensor]:
        named = dict(zip(self.program.inputs, inputs, strict=True))
        outputs = self._run.run(self._signature.solve(named), named, threads=threads)
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, row by row."""
        return [row.kernel for row in self.plan.rows]


def compiled(
    function: Callable, *examples: torch.Tensor, dynamic: Sequence[Mapping[int, str]] = (), **options
) -> Lowered:
    """``function`` captured on ``examples``, normalised (not fused to named ops) and compiled.

    Sizes named in ``dynamic`` may be anything from 0.
    """
    names = {name for dims in dynamic for name in dims.values()}
    program = capture(lambda *inputs: function(*inputs), examples, dynamic, ranges={name: (0, None) for name in names})
    for normalise in NORMALISE:
        program = normalise(program)
    return Lowered(program, **options)
