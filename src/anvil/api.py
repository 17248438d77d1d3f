"""The plain entries: compile a language model, or any captured program, for a target."""

from __future__ import annotations

from collections.abc import Sequence

from anvil import attention as attentions
from anvil import codegen, quant, targets
from anvil.frontend.stages import fuse
from anvil.graph.program import GraphProgram
from anvil.lower import lower
from anvil.runtime import open_executor
from anvil.runtime.executable import Executable
from anvil.runtime.executor import Executor
from anvil.runtime.memory import Memory
from anvil.runtime.pack import packer
from anvil.runtime.program import CompiledProgram, as_weights, signature_of
from anvil.targets import Target
from anvil.timing import Stopwatch

DEFAULT_TARGET = "x86_64-avx2"


def compile_program(
    program: GraphProgram,
    target: str = DEFAULT_TARGET,
    *,
    quant: str = "fp32",
    attention: str = "flash",
    weights: Sequence[str] = (),
    executor: Executor | None = None,
    guard: bool = False,
) -> CompiledProgram:
    """Compile a captured program into a callable from tensors to tensors.

    Args:
        program: from :func:`anvil.frontend.capture.capture`; it is fused here unless that has been done.
        weights: inputs that are weights given at each call; they are packed as ``quant`` says.
        executor: where to run; by default this process, or an emulator for a target this machine is not.
        guard: run on fresh poisoned memory between unreadable pages (for kernels that may be wrong).

    Raises:
        InputError: unknown target, mode or variant (the message lists the known ones).
        UnsupportedError: an operation without a lowering, with its arguments and the Python line that called it.
        ToolMissingError: the target cannot run here.
    """
    goal = _checked(target, quant, attention)
    watch = Stopwatch()
    with watch.stage("fuse"):
        fused = fuse(program) if program.stage == "capture" else program
    with watch.stage("lower"):
        plan = lower(as_weights(fused, weights), goal, quant=quant, attention=attention)
    with watch.stage("kernels"):
        library = codegen.compile_library(plan.kernels.values(), goal)
    memory = Memory(executor or open_executor(goal), library)
    executable = Executable(plan, memory, pack=packer(quant, goal), params=program.params, guard=guard)
    return CompiledProgram(plan, library, program.inputs, signature_of(program), executable, watch.ms)


def _checked(target: str, mode: str, variant: str) -> Target:
    """The target, if everything named is known."""
    quant.get(mode)
    attentions.get(variant)
    return targets.get(target)
