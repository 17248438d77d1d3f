"""The plain entries: compile a language model, or any captured program, for a target."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psutil
import torch

from anvil import attention as attentions
from anvil import codegen, targets
from anvil.errors import InputError
from anvil.frontend.capture import capture
from anvil.frontend.decoding import greedy, last_row
from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import fuse
from anvil.graph.layers import layer_outputs, module_points
from anvil.graph.program import GraphProgram
from anvil.lower import lower
from anvil.models.base import LoadedModel
from anvil.quant import Stored, choose
from anvil.runtime import open_executor
from anvil.runtime.executable import Executable
from anvil.runtime.executor import Executor
from anvil.runtime.memory import Memory
from anvil.runtime.model import CompiledModel, Plans, Points
from anvil.runtime.pack import Packer
from anvil.runtime.program import CompiledProgram, as_weights, signature_of
from anvil.targets import Target
from anvil.timing import Stopwatch

DEFAULT_TARGET = "x86_64-avx2"
DEFAULT_CONTEXT = 2048  # tokens, where neither the caller nor the model's configuration gives fewer
KV_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
_VARIANTS = {"prefill": "flash", "decode": "decode"}  # for phases that the chosen variant does not claim
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
    module, stored = _opened(model, quant)
    context = _context(module, context)
    for name, value in (("max_prefill", max_prefill), ("threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"compiling a model: {name}={value}, expected at least 1")
    watch = Stopwatch()
    with watch.stage("capture"):
        captured = _capture_model(module, context)
        captured.stored = {name: stored[path] for name, path in captured.paths.items() if path in stored}
    with watch.stage("fuse"):
        whole = fuse(captured)
        vocabulary = int(_logits_of(whole).shape[-1])
    with watch.stage("incrementalise"):
        steps = greedy(last_row(incrementalise(whole, KV_TYPES[kv])))
    with watch.stage("lower"):
        phases = attentions.get(attention).phases
        many, one = (attention if phase in phases else other for phase, other in _VARIANTS.items())
        # The model refuses ids outside the vocabulary before they are fed.
        choices: dict[str, Any] = {"quant": quant, "trusted": captured.inputs[:1]}
        logits = lower(whole, goal, attention=many, **choices)
        prefill = lower(steps, goal, attention=many, **choices)
        decode = lower(steps, goal, attention=one, **choices, fixed={"S": 1})
    with watch.stage("kernels"):
        kernels = {kernel.name: kernel for plan in (logits, prefill, decode) for kernel in plan.kernels.values()}
        library = codegen.compile_library(kernels.values(), goal)
    with watch.stage("pack"):
        memory = _memory(executor, goal, library)
        pack = Packer(quant, goal, stored=captured.stored, measure=measure_weights)
        shared = {"pack": pack, "params": captured.params}
        plans = Plans(
            logits=Executable(logits, memory, **shared, name="logits", arena="arena.logits"),
            prefill=Executable(prefill, memory, **shared, name="prefill"),
            decode=Executable(decode, memory, **shared, name="decode"),
        )
        for executable in plans.each().values():
            executable.upload()
    return CompiledModel(
        plans,
        memory,
        vocabulary=vocabulary,
        context=context,
        chunk=min(max_prefill, context),
        threads=threads or physical_cores(),
        layers={layer: node for layer, node in layer_outputs(whole).items() if node in logits.values},
        inside=Points(
            [point for point in module_points(whole) if point.node in logits.values],
            [point for point in module_points(steps) if point.node in decode.values],
        ),
        compile_ms=watch.ms,
        labels={"target": goal.name, "quant": quant, "attention": attention, "kv": kv},
        weights=[replace(row, parameter=captured.paths[row.parameter]) for row in pack.rows.values()],
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


def _opened(model: torch.nn.Module | LoadedModel, mode: str) -> tuple[torch.nn.Module, dict[str, Stored]]:
    """The module, and what its source holds quantised already; checks ``mode`` before anything takes time."""
    stored = model.stored() if isinstance(model, LoadedModel) and model.stored is not None and mode != "fp32" else {}
    choose(mode, stored)
    return model.module if isinstance(model, LoadedModel) else model, stored


def _context(model: torch.nn.Module, asked: int | None) -> int:
    """Tokens of cache per sequence: as asked for, else by the model's configuration."""
    made_for = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    context = asked if asked is not None else min(made_for or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if context < 1 or (made_for is not None and context > made_for):
        raise InputError(f"compiling a model: context={context}, expected 1..{made_for or 'any'} tokens for this model")
    return context


def _capture_model(model: torch.nn.Module, context: int) -> GraphProgram:
    """The forward pass from ids to logits; transformers models without their own cache."""
    ids = torch.zeros((2, max(2, min(8, context))), dtype=torch.int64)
    is_transformers = hasattr(model, "config") and hasattr(model, "generation_config")
    return capture(
        model,
        (ids,),
        ({0: "B", 1: "S"},),
        type(model).__name__,
        ranges={"S": (1, max(2, context))},
        kwargs={"use_cache": False} if is_transformers else None,
        select=_logits if is_transformers else None,
    )


def _logits(output: Any) -> torch.Tensor:
    return output.logits


def _logits_of(program: GraphProgram) -> torch.Tensor:
    outputs: Any = program.module.graph.output_node().args[0]
    value = outputs[0].meta["val"]
    if len(outputs) != 1 or value.ndim != 3:
        shapes = [tuple(output.meta["val"].shape) for output in outputs]
        raise InputError(
            f"compiling {program.name!r} as a language model: it returns {shapes}, "
            "expected one tensor [batch, tokens, vocabulary]; use compile_program for other programs"
        )
    return value
