"""Runs one kernel on numpy arrays, wherever its target runs here, in guarded memory."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from anvil import codegen, targets
from anvil.errors import EmulatorError
from anvil.kernels.base import Kernel, Param
from anvil.runtime import open_executor, status
from anvil.targets import Target

TARGETS = [target.name for target in targets.quick_targets()]
RUNNING = [name for name in TARGETS if status(targets.get(name), isolated=True).runs]
U32 = 2.0**-24  # unit roundoff of f32


class KernelBench:
    """Isolated executor of one target. Buffers end at an unreadable page, inputs are read-only."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.executor = open_executor(target, isolated=True)
        self._entries: dict[str, int] = {}

    def run(self, kernel: Kernel, *arguments: np.ndarray | float, threads: int = 1) -> np.ndarray:
        """Call ``kernel``; return its output as an array like the one given for it (whose contents it starts from).

        Arrays may be strided or broadcast views; they are laid out in memory with exactly their strides.
        """
        *_, last = self.run_all(kernel, *arguments, threads=threads).values()
        return last

    def run_all(self, kernel: Kernel, *arguments: np.ndarray | float, threads: int = 1) -> dict[str, np.ndarray]:
        """Like :meth:`run`; every output by name."""
        words: list[int] = []
        blocks: list[int] = []
        outputs: dict[str, tuple[int, np.ndarray]] = {}
        for param, argument in zip(kernel.params, arguments, strict=True):
            if not isinstance(argument, np.ndarray):
                words.append(int(np.float32(argument).view(np.uint32)) if param.dtype == "f32" else int(argument))
                continue
            address = self._place(param, argument)
            blocks.append(address)
            strides = [stride // argument.itemsize for stride in argument.strides]
            words += [address, address, 0, *argument.shape, *strides]
            if param.kind != "in":
                outputs[param.name] = address, argument
        program = np.array([[self._entry(kernel), 0]], np.int64)
        reads = [(address, _extent(like) * like.itemsize) for address, like in outputs.values()]
        try:
            data = self.executor.run_and_read(program, np.array(words, np.int64), reads, threads=threads, timeout=60)
        except EmulatorError as error:
            pytest.skip(f"not run: {error}")
        for block in blocks:
            self.executor.free(block)
        pairs = zip(outputs.items(), data, strict=True)
        return {name: _view(np.frombuffer(raw, like.dtype), like) for (name, (_, like)), raw in pairs}

    def _entry(self, kernel: Kernel) -> int:
        if kernel.name not in self._entries:
            library = codegen.compile_library([kernel], self.target)
            handle = self.executor.load(library.data)
            self._entries[kernel.name] = self.executor.symbol(handle, library.symbols[kernel.name])
        return self._entries[kernel.name]

    def _place(self, param: Param, array: np.ndarray) -> int:
        image = np.full(_extent(array) * array.itemsize, 0xFF, np.uint8).view(array.dtype)
        _view(image, array)[...] = array
        address = self.executor.alloc(image.nbytes, align=array.itemsize, guard=True)
        self.executor.write(address, image.tobytes(), readonly=param.kind == "in")
        return address


def _extent(array: np.ndarray) -> int:
    """Elements between an array's first and one past its last, for strides that are not negative."""
    if array.size == 0:
        return 0
    steps = zip(array.shape, array.strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) // array.itemsize


def _view(flat: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(flat, like.shape, like.strides) if like.size else np.empty_like(like)


@functools.cache
def bench(name: str) -> KernelBench:
    """The bench of a target, or a skip that says what this machine lacks."""
    target = targets.get(name)
    here = status(target, isolated=True)
    if not here.runs:
        pytest.skip(here.reason)
    return KernelBench(target)


def poison(*shape: int, dtype: str = "float32") -> np.ndarray:
    """An output to write to: NaN, or all bits set."""
    return np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


def assert_within(got: np.ndarray, want: np.ndarray, bound: np.ndarray | float) -> None:
    """Every element within its bound of a float64 golden."""
    error = np.abs(got.astype(np.float64) - want)
    excess = np.where(np.isnan(error), np.inf, error - bound)
    if excess.size and excess.max() > 0:
        worst = np.unravel_index(excess.argmax(), excess.shape)
        limit = np.broadcast_to(bound, error.shape)[worst]
        raise AssertionError(f"at {worst}: got {got[worst]!r} want {want[worst]!r}, error {error[worst]} > {limit}")


def assert_targets_agree(build: Callable[[Target], Kernel], arguments: Callable[[Target], tuple]) -> None:
    """The first target's bits are every target's bits, for one and for three threads."""
    answers: dict[str, bytes] = {}
    for target in targets.quick_targets():
        if not status(target, isolated=True).runs:
            continue
        for threads in (1, 3):
            output = bench(target.name).run(build(target), *arguments(target), threads=threads)
            answers[f"{target.name} on {threads}"] = np.ascontiguousarray(output).tobytes()
    first, expected = next(iter(answers.items()))
    different = [name for name, found in answers.items() if found != expected]
    assert not different, f"bits differ from {first}: {different}"
