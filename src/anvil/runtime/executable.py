"""A plan that runs: bound to sizes, its buffers placed in an executor's memory, row by row if need be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from anvil.dtypes import TORCH_OF_MLIR, itemsize
from anvil.errors import InputError
from anvil.runtime.arena import Arena, lifetimes, place
from anvil.runtime.binding import Binding
from anvil.runtime.memory import Memory
from anvil.runtime.original import Original
from anvil.runtime.pack import Pack
from anvil.runtime.plan import Plan, View
from anvil.runtime.run import Run


class Executable:
    """Runs one plan.

    ``params`` holds the weights by parameter name; they are packed and uploaded at first use, once per memory.
    Weights absent from ``params`` are arguments of every run. With ``guard`` every buffer of a run is fresh memory
    between unreadable pages, poisoned, and freed afterwards; otherwise temporaries lie in the memory block called
    ``arena``, which plans that never run at once may share, and in this process inputs are read where they lie.

    ``name`` tells plans of one memory apart.

    The attribute ``arena`` says where the temporaries lie for the largest sizes placed so far; ``program`` holds the
    rows to run (int64 [rows, 2]) after :meth:`place_shared`.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        *,
        pack: Pack,
        params: Mapping[str, torch.Tensor | Original] | None = None,
        guard: bool = False,
        name: str = "",
        arena: str = "arena",
    ) -> None:
        self.plan = plan
        self.name = name or plan.name
        self.memory = memory
        self.binding = Binding(plan)
        self.pack = pack
        self._params: Mapping[str, torch.Tensor | Original | None] = params or {}
        self.guard = guard
        self.arena_block = arena
        self._kernels = sorted({row.kernel for row in plan.rows})
        self._alive = lifetimes(plan)
        self.arena = Arena({}, 0, 0)
        self._arena_sizes: dict[str, int] = {}
        self._placed_in: int | None = None  # generation of the executor
        self.program = np.empty((0, 2), np.int64)

    def run(
        self,
        values: Mapping[str, int],
        arguments: Mapping[str, torch.Tensor],
        *,
        threads: int = 1,
        timeout: float | None = None,
    ) -> list[torch.Tensor]:
        """Outputs for ``arguments`` (inputs and run-time weights by buffer or parameter name, any strides).

        Raises :class:`KernelError` naming the row and graph node that crashed or hung, and the :class:`InputError` of
        a check that failed: an index outside what it indexes, a division by zero, sizes that an op has no result for.
        """
        wanted = [*self.plan.outputs, *(View(check.buffer, 0, (), ()) for check in self.plan.checks)]
        with Run(self, values, arguments) as run:
            results = run.rows(0, len(self.plan.rows), wanted, threads, timeout)
        outputs = results[: len(self.plan.outputs)]
        self.plan.require(bool(flag) for flag in results[len(outputs) :])
        return outputs

    def trace(
        self,
        values: Mapping[str, int],
        arguments: Mapping[str, torch.Tensor],
        nodes: Sequence[str],
        *,
        threads: int = 1,
        timeout: float | None = None,
    ) -> dict[str, torch.Tensor]:
        """The values of the named graph nodes, read as soon as they are complete.

        Raises :class:`InputError` for a node that has no value in the plan (for instance one that was fused away).
        """
        unknown = [node for node in nodes if node not in self.plan.values]
        if unknown:
            raise InputError(
                f"tracing plan={self.plan.name}: nodes {unknown} have no value of their own; "
                f"there are {len(self.plan.values)}, for example {sorted(self.plan.values)[:8]}"
            )
        complete = {node: self.completed_by(node) for node in nodes}
        found: dict[str, torch.Tensor] = {}
        with Run(self, values, arguments) as run:
            done = 0
            for node in sorted(nodes, key=lambda name: complete[name]):
                last = max(done, complete[node])
                (found[node],) = run.rows(done, last, [self.plan.values[node]], threads, timeout)
                done = last
        return {node: found[node] for node in nodes}

    def completed_by(self, node: str) -> int:
        """How many rows must have run before the value of ``node`` can be read."""
        own = [index for index, row in enumerate(self.plan.rows) if row.node == node]
        if own:
            return own[-1] + 1
        buffer = self.plan.values[node].buffer
        writers = [index for index, row in enumerate(self.plan.rows) if buffer in self._written(index)]
        if not writers:
            return 0  # a view of an input or a weight
        producer = self.plan.rows[writers[0]].node
        return max(index for index in writers if self.plan.rows[index].node == producer) + 1

    def _written(self, index: int) -> set[str]:
        row = self.plan.rows[index]
        params = self.plan.kernels[row.kernel].params
        pairs = zip(params, row.args, strict=True)
        return {arg.buffer for param, arg in pairs if param.kind in ("out", "inout") and isinstance(arg, View)}

    def place_shared(self, values: Mapping[str, int]) -> None:
        """Set the addresses of everything that stays: functions, weights in ``params``, and the arena."""
        nbytes = self.binding.nbytes(values)
        if not self.guard:
            self._place_arena(nbytes)
        if self._placed_in == self.memory.executor.generation:
            return
        self.program = self.binding.program(self.memory.functions(self._kernels))
        self.binding.place({name: self._constant(name) for name in self.constants()})
        self._placed_in = self.memory.executor.generation

    def upload(self) -> None:
        """Pack the known weights and put them into memory now, instead of at first use.

        In this process nothing can be lost, so the originals are let go; elsewhere they are kept for a restart.
        """
        for name in self.constants():
            self._constant(name)
        if self.memory.in_process:
            self._params = dict.fromkeys(self._params)

    def constants(self) -> list[str]:
        """Weight buffers whose contents are known before a run."""
        return [name for name, param in self.plan.weights.items() if param in self._params]

    def constant_sizes(self) -> dict[str, int]:
        """Bytes of every constant, by the key it has in memory."""
        shapes = {name: self._shape(name) for name in self.constants()}
        return {
            self._key(name): math.prod(shape) * itemsize(self.plan.buffers[name].dtype)
            for name, shape in shapes.items()
        }

    def fill_constant(self, key: str, out: np.ndarray) -> None:
        """Pack the constant of that key into bytes at ``out``."""
        name = next(name for name in self.constants() if self._key(name) == key)
        buffer, param = self.plan.buffers[name], self.plan.weights[name]
        if out.nbytes:
            tensor = torch.from_numpy(out).view(TORCH_OF_MLIR[buffer.dtype]).reshape(self._shape(name))
            self.pack(buffer, param, self._original(param), tensor)

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of a constant; where the plan has sizes in it, it is not packed and that of its parameter."""
        shape = self.plan.buffers[name].shape
        if all(isinstance(size, int) or size.is_Integer for size in shape):
            return tuple(map(int, shape))
        return tuple(self._original(self.plan.weights[name]).shape)

    def _key(self, name: str) -> str:
        return f"{self.plan.weights[name]}|{self.plan.buffers[name].layout}"

    def _constant(self, name: str) -> int:
        key = self._key(name)

        def make() -> np.ndarray:
            data = np.empty(self.constant_sizes()[key], np.uint8)
            self.fill_constant(key, data)
            return data

        return self.memory.constant(key, make)

    def _original(self, param: str) -> Original:
        held = self._params[param]
        assert held is not None, f"{param} was let go before it was packed as this plan wants it"
        return held if isinstance(held, Original) else Original.of(held)

    def _place_arena(self, nbytes: Mapping[str, int]) -> None:
        """Plan the arena again only when a temporary outgrows its place."""
        sizes = {life.name: nbytes[life.name] for life in self._alive}
        if any(size > self._arena_sizes.get(name, -1) for name, size in sizes.items()):
            self._arena_sizes = {name: max(size, self._arena_sizes.get(name, 0)) for name, size in sizes.items()}
            self.arena = place(self._alive, [self._arena_sizes[life.name] for life in self._alive])
        base = self.memory.block(self.arena_block, max(self.arena.nbytes, 1))
        self.binding.place({name: base + offset for name, offset in self.arena.offsets.items()})
