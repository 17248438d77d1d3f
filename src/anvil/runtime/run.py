"""One run of an executable with memory of its own: written on entry, read while it lasts, given back at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from anvil.dtypes import TORCH_OF_MLIR, itemsize
from anvil.errors import KernelError
from anvil.runtime.binding import concrete
from anvil.runtime.memory import as_bytes
from anvil.runtime.original import Original
from anvil.runtime.plan import Buffer, Plan, View

if TYPE_CHECKING:
    from anvil.runtime.executable import Executable


class Run:
    """The memory of one run: written on entry, read while it lasts, given back at the end."""

    def __init__(self, owner: Executable, values: Mapping[str, int], arguments: Mapping[str, torch.Tensor]) -> None:
        self._of = owner
        self._memory = owner.memory
        self._values = values
        self._arguments = arguments
        self._shapes = owner.binding.shapes(values)
        self._addresses: dict[str, int] = {}
        self._held: dict[str, torch.Tensor] = {}  # tensors whose own memory is a buffer of this run
        self._owned: list[int] = []

    def __enter__(self) -> Run:
        owner = self._of
        owner.place_shared(self._values)
        owner.binding.bind(self._values)
        for name, buffer in owner.plan.buffers.items():
            if buffer.role == "temp" and not owner.guard:
                continue
            if name not in owner.constants():
                self._addresses[name] = self._place(name, buffer)
        owner.binding.place(self._addresses)
        return self

    def __exit__(self, *exc: object) -> None:
        for address in self._owned:
            self._memory.executor.free(address)

    def _place(self, name: str, buffer: Buffer) -> int:
        tensor = self._contents(name, buffer)
        if self._memory.in_process and not self._of.guard:
            if tensor is None:
                tensor = torch.empty(self._shapes[name], dtype=TORCH_OF_MLIR[buffer.dtype])
            self._held[name] = tensor.detach().contiguous()
            return self._held[name].data_ptr()
        size = itemsize(buffer.dtype)
        nbytes = math.prod(self._shapes[name]) * size
        align = {"align": size, "guard": True} if self._of.guard else {}
        address = self._memory.executor.alloc(nbytes, **align)
        self._owned.append(address)
        if tensor is not None and nbytes:
            self._memory.executor.write(address, as_bytes(tensor), readonly=buffer.role in ("input", "weight"))
        return address

    def _contents(self, name: str, buffer: Buffer) -> torch.Tensor | None:
        """What the buffer holds before the run, None for nothing."""
        if buffer.role == "weight":
            parameter = self._of.plan.weights[name]
            packed = torch.empty(self._shapes[name], dtype=TORCH_OF_MLIR[buffer.dtype])
            self._of.pack(buffer, parameter, Original.of(self._arguments[parameter]), packed)
            return packed
        if buffer.role == "input":
            return self._laid_out(name, self._arguments[name])
        return self._arguments[name] if buffer.role == "cache" else None

    def _laid_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """An input as the plan expects it: dense, or spread out with the strides the program was captured with."""
        shape, view = self._shapes[name], self._of.plan.values.get(name)
        if view is None or shape == tuple(tensor.shape):
            return tensor
        offset, sizes, strides = concrete(view, self._values)
        if tensor.stride() == strides:
            return tensor.as_strided(shape, (1,))
        spread = torch.zeros(shape, dtype=tensor.dtype)
        spread.as_strided(sizes, strides, offset).copy_(tensor)
        return spread

    def rows(
        self, first: int, last: int, views: Sequence[View], threads: int, timeout: float | None
    ) -> list[torch.Tensor]:
        """Run the rows ``first`` to ``last``, exclusive; the values of ``views`` then, in one round trip."""
        windows = [self._window(view) for view in views]
        reads = [(window.address, window.nbytes) for window in windows if window.nbytes]
        owner = self._of
        try:
            raw = self._memory.executor.run_and_read(
                owner.program[first:last], owner.binding.words, reads, threads=threads, timeout=timeout
            )
        except KernelError as error:
            raise located(owner.plan, error, first) from error
        answers = iter(raw)
        return [window.tensor(next(answers) if window.nbytes else b"") for window in windows]

    def _window(self, view: View) -> Window:
        offset, sizes, strides = concrete(view, self._values)
        dtype = TORCH_OF_MLIR[self._of.plan.buffers[view.buffer].dtype]
        held = self._held.get(view.buffer)
        if held is not None and self._of.plan.buffers[view.buffer].role == "output":
            return Window(sizes, strides, dtype, offset, held=held)
        return Window(sizes, strides, dtype, offset, base=self._of.binding.addresses[view.buffer])


@dataclass(frozen=True)
class Window:
    """A strided window to be read: on memory at ``base`` by copying, on a tensor of this process (``held``) not."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    base: int = 0
    held: torch.Tensor | None = None

    @property
    def address(self) -> int:
        return self.base + self.offset * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element; 0 if nothing is to be copied."""
        if self.held is not None or 0 in self.sizes:
            return 0
        steps = ((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return (1 + sum(steps)) * self.dtype.itemsize

    def tensor(self, raw: bytes) -> torch.Tensor:
        """The window's value out of the bytes read."""
        if self.held is not None:
            return self.held.reshape(-1).as_strided(self.sizes, self.strides, self.offset)
        if 0 in self.sizes:
            return torch.empty(self.sizes, dtype=self.dtype)
        flat = torch.frombuffer(bytearray(raw), dtype=self.dtype)
        return flat.as_strided(self.sizes, self.strides).contiguous()


def located(plan: Plan, error: KernelError, first: int) -> KernelError:
    """The same error, naming the graph node and the Python line of the row it happened in."""
    message = f"running plan={plan.name}"
    if error.row is not None and first + error.row < len(plan.rows):
        row = plan.rows[first + error.row]
        message += f" kernel={row.kernel} node={row.node}" + (f" ({row.source})" if row.source else "")
        return type(error)(f"{message}: {error}", signal=error.signal, row=first + error.row)
    return type(error)(f"{message}: {error}", signal=error.signal)
