"""An executable held ready to run again and again on the same memory: one step of the token loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from anvil.dtypes import TORCH_OF_MLIR
from anvil.errors import KernelError
from anvil.runtime.binding import concrete
from anvil.runtime.executable import Executable
from anvil.runtime.native import NativeExecutor
from anvil.runtime.run import Window, located
from anvil.runtime.waves import marks

_NUMPY = {
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "i64": np.dtype("i8"),
    "i32": np.dtype("i4"),
    "i1": np.dtype("?"),
}


class Step:
    """Inputs and outputs are numpy arrays that stay the same while the sizes do; a call allocates nothing.

    In this process the arrays are the kernels' own memory. Elsewhere they are mirrors, written before a run and
    read after it. With ``waves`` threads wait for each other only where rows need it (:mod:`anvil.runtime.waves`):
    that takes some milliseconds to find out, and pays for a step that runs often on few tokens.
    """

    def __init__(self, executable: Executable, values: Mapping[str, int], *, threads: int, waves: bool = False) -> None:
        self._of = executable
        self._waves = waves
        self._memory = executable.memory
        self._threads = threads
        self.argument_order = executable.plan.inputs
        self.result_order = tuple(view.buffer for view in executable.plan.outputs)
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: dict[str, np.ndarray] = {}
        self.bind(values)

    def bind(self, values: Mapping[str, int], *, threads: int | None = None) -> None:
        """Set the sizes and, if given, the thread count; arrays handed out before are void."""
        self._threads = threads or self._threads
        owner, memory = self._of, self._memory
        self._values = dict(values)
        owner.place_shared(values)
        shapes, nbytes = owner.binding.shapes(values), owner.binding.nbytes(values)
        self._blocks = {owner.arena_block: memory.block(owner.arena_block, 0)}
        for name, buffer in owner.plan.buffers.items():
            if buffer.role not in ("input", "output", "cache"):
                continue
            key = f"cache.{name}" if buffer.role == "cache" else f"{owner.name}.{name}"
            address = self._blocks[key] = memory.block(key, max(nbytes[name], 1))
            owner.binding.place({name: address})
            if buffer.role != "cache":
                arrays = self.inputs if buffer.role == "input" else self.outputs
                arrays[name] = self._array(address, shapes[name], buffer.dtype)
        owner.binding.bind(values)
        self._version = memory.version
        known = marks(owner.binding) if self._waves and memory.in_process and self._threads > 1 else None
        self._prepared = memory.executor.prepare(owner.program, owner.binding.words, threads=self._threads, marks=known)

    def _array(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        executor = self._memory.executor
        if isinstance(executor, NativeExecutor):
            return executor.array(address, shape, _NUMPY[dtype])
        return np.zeros(shape, _NUMPY[dtype])

    @property
    def stale(self) -> bool:
        """Whether memory of this step has moved or was lost since it was bound."""
        if self._version != self._memory.version and self._memory.holds(self._blocks):
            self._version = self._memory.version  # it was other blocks that moved
        return self._version != self._memory.version

    def __call__(self) -> None:
        """Run once on what ``inputs`` hold; ``outputs`` hold the result.

        Raises :class:`KernelError`, and the :class:`InputError` of a check that failed."""
        if self.stale:
            raise KernelError(f"running plan={self._of.plan.name}: its memory has moved; bind the step again")
        if self._memory.in_process:
            self._memory.executor.run_prepared(self._prepared)
        else:
            self._remote()
        if self._of.plan.checks:
            self._of.plan.require(bool(self.outputs[check.buffer]) for check in self._of.plan.checks)

    def trace(self, nodes: Sequence[str]) -> dict[str, torch.Tensor]:
        """Run once, reading the values of the named graph nodes as soon as they are complete."""
        owner, executor = self._of, self._memory.executor
        if not self._memory.in_process:
            for name, array in self.inputs.items():
                executor.write(owner.binding.addresses[name], array.data.cast("B"))
        complete = {node: owner.completed_by(node) for node in nodes}
        found: dict[str, torch.Tensor] = {}
        done = 0
        for node in sorted(nodes, key=lambda name: complete[name]):
            window = self._window(node)
            last = max(done, complete[node])
            reads = [(window.address, window.nbytes)]
            (raw,) = executor.run_and_read(owner.program[done:last], owner.binding.words, reads, threads=self._threads)
            found[node] = window.tensor(raw)
            done = last
        reads = [(owner.binding.addresses[name], array.nbytes) for name, array in self.outputs.items()]
        raw = executor.run_and_read(owner.program[done:], owner.binding.words, reads, threads=self._threads)
        for array, data in zip(self.outputs.values(), raw, strict=True):
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)
        return found

    def _window(self, node: str) -> Window:
        view = self._of.plan.values[node]
        offset, sizes, strides = concrete(view, self._values)
        dtype = TORCH_OF_MLIR[self._of.plan.buffers[view.buffer].dtype]
        return Window(sizes, strides, dtype, offset, base=self._of.binding.addresses[view.buffer])

    def _remote(self) -> None:
        executor, addresses = self._memory.executor, self._of.binding.addresses
        for name, array in self.inputs.items():
            executor.write(addresses[name], array.data.cast("B"))
        reads = [(addresses[name], array.nbytes) for name, array in self.outputs.items()]
        try:
            raw = executor.run_and_read(self._of.program, self._of.binding.words, reads, threads=self._threads)
        except KernelError as error:
            raise located(self._of.plan, error, 0) from error
        for array, data in zip(self.outputs.values(), raw, strict=True):
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)
