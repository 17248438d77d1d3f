"""anvil under test: the one place where assay touches it."""

from __future__ import annotations

import functools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from anvil import api, attention, errors, models, quant, targets
from anvil.graph.program import GraphProgram
from anvil.runtime import open_executor, status
from anvil.runtime.executor import Executor
from anvil.runtime.program import CompiledProgram
from assay.backends._anvil_programs import given
from assay.backends.protocol import (
    Claim,
    Compiled,
    Finding,
    LanguageModel,
    NotRunHere,
    Program,
    TargetStatus,
    Unsupported,
)

TIMEOUT = 60.0  # seconds one example may take before it counts as a hang; emulated examples take milliseconds
_DEFAULT_ATTENTION = "flash"
_REMEMBERED = 16  # programs: all targets of one are compiled before the next ones, whose graphs would fill memory


@functools.cache
def _executor(target: str) -> Executor:
    """One process per target and worker, reused by all cases; it restarts itself after a crash."""
    return open_executor(targets.get(target), isolated=True)


@functools.lru_cache(maxsize=1)
def _model(source: str) -> models.LoadedModel:
    """The model last loaded: it is compiled for one target after another."""
    return models.load(source)


@dataclass
class AnvilProgram:
    """A program compiled by anvil, run in isolation: guard pages, poisoned outputs, weights read-only."""

    compiled: CompiledProgram
    captured: GraphProgram
    artifact: str = ""
    edges: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.artifact = self.compiled.library.key
        self.edges = self.compiled.edges

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        """Raises :class:`Finding` naming the signal, the row's kernel and the graph node; :class:`NotRunHere` if the
        emulator itself failed."""
        try:
            return self.compiled(*inputs, threads=threads, timeout=TIMEOUT)
        except errors.EmulatorError as error:
            raise NotRunHere(str(error)) from error
        except errors.KernelError as error:
            raise Finding(str(error)) from error

    def stages(self) -> Sequence[tuple[str, Callable[..., list[torch.Tensor]]]]:
        """The graph after each pass, run by PyTorch."""
        from anvil.frontend.stages import each_stage

        return [(stage.stage, functools.partial(_run_in_torch, stage)) for stage in each_stage(self.captured)]


def _run_in_torch(program: GraphProgram, *inputs: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(program.module(*inputs, *program.params.values()))


class AnvilBackend:
    """Implements :class:`assay.backends.protocol.Backend`."""

    name = "anvil"

    def __init__(self) -> None:
        self._prepared: OrderedDict[bytes, Prepared] = OrderedDict()

    def targets(self) -> list[TargetStatus]:
        return [_status(target.name) for target in targets.all_targets()]

    def modes(self) -> Mapping[str, tuple[str, ...]]:
        return {"quant": tuple(quant.modes()), "kv": tuple(api.KV_TYPES), **attention.families()}

    def coverage(self) -> Sequence[Claim]:
        from anvil.lower.coverage import coverage

        return [Claim(row.name, row.core, row.state, row.how) for row in coverage()]

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> Compiled:
        names = ()
        try:
            prepared = self._prepared_once(program)
            names = tuple(prepared.captured.inputs[position] for position in program.weights)
            compiled = api.compile_program(
                prepared.written_out,
                target,
                quant=quant,
                attention=variant or _DEFAULT_ATTENTION,
                weights=names,
                executor=_executor(target),
                guard=True,
            )
        except errors.UnsupportedError as error:
            raise Unsupported(str(error)) from error
        except errors.ToolMissingError as error:
            raise NotRunHere(str(error)) from error
        return AnvilProgram(compiled, prepared.captured)

    def compile_to_time(self, program: Program, target: str) -> Compiled:
        try:
            prepared = self._prepared_once(program)
            return AnvilProgram(api.compile_program(prepared.fused, target), prepared.fused)
        except errors.UnsupportedError as error:
            raise Unsupported(str(error)) from error
        except errors.ToolMissingError as error:
            raise NotRunHere(str(error)) from error

    def load_model(
        self,
        source: str,
        target: str,
        *,
        quant: str = "fp32",
        kv: str = "fp32",
        threads: int = 1,
        context: int | None = None,
    ) -> LanguageModel:
        try:
            return api.compile(_model(source), target, quant=quant, kv=kv, threads=threads, context=context)
        except errors.UnsupportedError as error:
            raise Unsupported(str(error)) from error
        except errors.ToolMissingError as error:
            raise NotRunHere(str(error)) from error

    def _prepared_once(self, program: Program) -> Prepared:
        """Once per program, however many targets it is compiled for in a row."""
        shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in program.example]
        try:
            key = pickle.dumps((program.name, program.module, shapes, program.dynamic))
        except (pickle.PicklingError, AttributeError, TypeError):
            return Prepared(_capture(program))
        if key not in self._prepared:
            self._prepared[key] = Prepared(_capture(program))
        self._prepared.move_to_end(key)
        while len(self._prepared) > _REMEMBERED:
            self._prepared.popitem(last=False)
        return self._prepared[key]


@dataclass
class Prepared:
    """A program up to where targets part: each stage is made when it is first asked for."""

    captured: GraphProgram

    @functools.cached_property
    def fused(self) -> GraphProgram:
        from anvil.frontend.stages import fuse

        return fuse(self.captured) if self.captured.stage == "capture" else self.captured

    @functools.cached_property
    def written_out(self) -> GraphProgram:
        from anvil.lower import write_out

        return write_out(self.fused)


def _capture(program: Program) -> GraphProgram:
    """Through the full front end; every dynamic size may be zero.

    The cache operations enter a graph through anvil's own pass over a model, never by a pattern in PyTorch code, so
    programs of their names are captured as them.
    """
    from anvil.frontend.capture import capture
    from anvil.graph.rewrite import GraphPass

    sizes = {size for dims in program.dynamic for size in dims.values()}
    ranges = {size: (0, None) for size in sizes}
    module = given(program.name, program.module)
    captured = capture(module, program.example, program.dynamic, program.name, ranges=ranges)
    return GraphPass("append_in_place", _append)(captured) if program.name == "kv_append" else captured


def _append(program: GraphProgram) -> None:
    """A functional update of a cache becomes a copy of it and ``anvil::kv_append`` on the copy."""
    from anvil.graph.rewrite import calls, emit

    cache, new, past = program.module.graph.find_nodes(op="placeholder")
    for node in calls(program.module.graph, torch.ops.aten.scatter.src):
        copy = emit(program, node, torch.ops.aten.clone.default, cache)
        emit(program, node, torch.ops.anvil.kv_append.default, copy, new, past)
        node.replace_all_uses_with(copy)


def _status(name: str) -> TargetStatus:
    target = targets.get(name)
    here = status(target, isolated=True)
    facts = {
        "triple": target.triple,
        "cpu": target.cpu,
        "features": target.features,
        "vector_bits": target.vector_bits,
        "bit_reproducible": True,
        "flushes_denormals": False,
        "quick": target.quick,
    }
    return TargetStatus(name, target.isa, here.runs, here.executor, here.reason, facts)


BACKEND = AnvilBackend()
