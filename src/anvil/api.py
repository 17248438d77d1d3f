"""The plain entries: compile a language model, or any captured program, for a target."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import replace

import psutil
import torch

from anvil import attention as attentions
from anvil import codegen, targets
from anvil.errors import InputError
from anvil.graph.program import GraphProgram
from anvil.model_plans import Choices, plans_of_model, plans_of_module
from anvil.model_weights import ModelWeights
from anvil.models.base import LoadedModel
from anvil.pause import without_collection
from anvil.quant import AS_STORED, choose
from anvil.runtime import open_executor
from anvil.runtime.executable import Executable
from anvil.runtime.executor import Executor
from anvil.runtime.memory import Memory
from anvil.runtime.model import CompiledModel, Plans
from anvil.runtime.pack import Packer
from anvil.runtime.place import place_weights
from anvil.runtime.program import CompiledProgram, as_weights, signature_of
from anvil.targets import Target
from anvil.timing import Stopwatch

DEFAULT_TARGET = "x86_64-avx2"
DEFAULT_CONTEXT = 2048  # tokens, where neither the caller nor the model's configuration gives fewer
KV_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
PREFILL_CHUNK = 512  # tokens of a prompt fed at a time: bounds the arena, changes no bit


def compile(
    model: torch.nn.Module | LoadedModel,
    target: str = DEFAULT_TARGET,
    *,
    quant: str = "fp32",
    attention: str = "flash",
    kv: str = "fp32",
    threads: int | None = None,
    context: int | None = None,
    max_prefill: int = PREFILL_CHUNK,
    executor: Executor | None = None,
    measure_weights: bool = False,
) -> CompiledModel:
    """Compile a causal language model, a module from ids i64 [B, S] to logits f32 [B, S, V].

    Args:
        model: of transformers, or any module that treats its tokens one by one but for causal attention. Of what
            ``anvil.models`` loaded, matrices that the source holds in the asked mode are taken as they lie there.
        quant: a mode (``anvil.quant.modes()``), or ``gguf``: every matrix as the file holds it.
        kv: element type of the key/value cache, one of ``KV_TYPES``; int8 has a scale per token and head.
        threads: by default one per physical core; never changes a bit.
        context: tokens the cache has room for per sequence; by default what the model's configuration says, at most
            ``DEFAULT_CONTEXT``.
        max_prefill: tokens of a prompt that are fed at a time.
        executor: where to run; by default this process, or an emulator for a target this machine is not.
        measure_weights: also measure what quantisation cost each weight, for ``CompiledModel.weights``.

    Raises:
        InputError: unknown target, mode, variant or cache type (the message lists the known ones), or sizes below 1.
        UnsupportedError: an operation without a lowering, with its arguments and the Python line that called it.
        ToolMissingError: the target cannot run here.
    """
    goal = _checked(target, attention)
    if kv not in KV_TYPES:
        raise InputError(f"compiling a model: kv={kv!r} is unknown; expected one of {list(KV_TYPES)}")
    for name, value in (("max_prefill", max_prefill), ("threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"compiling a model: {name}={value}, expected at least 1")
    if quant != AS_STORED:
        choose(quant)  # known, before anything takes time
    context = _context(model, context)
    watch = Stopwatch()
    choices = Choices(goal, quant, attention, context, KV_TYPES[kv])
    with without_collection():
        if isinstance(model, LoadedModel):
            plans = plans_of_model(model, choices, watch)
        else:
            plans, params = plans_of_module(model, choices, watch)
        with watch.stage("kernels"):
            each = (plans.logits, plans.prefill, plans.decode)
            kernels = {kernel.name: kernel for plan in each for kernel in plan.kernels.values()}
            library = codegen.compile_library(kernels.values(), goal)
    with watch.stage("pack"):
        memory = _memory(executor, goal, library)
        if isinstance(model, LoadedModel):
            weights = ModelWeights(model, plans, choices, measure=measure_weights)
            pack, params, made, file = weights.pack, weights.params(), weights.rows, weights.file_name()
        else:
            pack = Packer(quant, goal, measure=measure_weights)
            made, file = (lambda: list(pack.rows.values())), None
        shared = {"pack": pack, "params": params}
        runnable = Plans(
            logits=Executable(plans.logits, memory, **shared, name="logits", arena="arena.logits"),
            prefill=Executable(plans.prefill, memory, **shared, name="prefill"),
            decode=Executable(plans.decode, memory, **shared, name="decode"),
        )
        rows = place_weights(list(runnable.each().values()), memory, made, file)
    return CompiledModel(
        runnable,
        memory,
        vocabulary=plans.vocabulary,
        context=context,
        chunk=min(max_prefill, context),
        threads=threads or physical_cores(),
        layers=plans.layers,
        inside=plans.inside,
        compile_ms=watch.ms,
        labels={"target": goal.name, "quant": quant, "attention": attention, "kv": kv},
        weights=[replace(row, parameter=plans.paths[row.parameter]) for row in rows],
    )


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

    Raises: as :func:`compile`.
    """
    from anvil.frontend.stages import fuse
    from anvil.lower import lower

    goal = _checked(target, attention)
    watch = Stopwatch()
    with watch.stage("fuse"):
        fused = fuse(program) if program.stage == "capture" else program
    with watch.stage("lower"):
        plan = lower(as_weights(fused, weights), goal, quant=quant, attention=attention)
    with watch.stage("kernels"):
        library = codegen.compile_library(plan.kernels.values(), goal)
    memory = _memory(executor, goal, library)
    executable = Executable(plan, memory, pack=Packer(quant, goal), params=program.params, guard=guard)
    return CompiledProgram(plan, library, program.inputs, signature_of(program), executable, watch.ms)


def physical_cores() -> int:
    """Physical cores this process may use."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def _memory(executor: Executor | None, target: Target, library: codegen.Library) -> Memory:
    """Memory in the given executor, or in a new one that is closed when nothing uses the memory any more."""
    memory = Memory(executor or open_executor(target), library)
    if executor is None:
        weakref.finalize(memory, memory.executor.close)
    return memory


def _checked(target: str, variant: str) -> Target:
    """The target, if everything named is known."""
    attentions.get(variant)
    return targets.get(target)


def _context(model: torch.nn.Module | LoadedModel, asked: int | None) -> int:
    """Tokens of cache per sequence: as asked for, else by the model's configuration."""
    if isinstance(model, LoadedModel):
        made_for = model.context
    else:
        made_for = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    context = asked if asked is not None else min(made_for or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if context < 1 or (made_for is not None and context > made_for):
        raise InputError(f"compiling a model: context={context}, expected 1..{made_for or 'any'} tokens for this model")
    return context
