"""One run of an executable with memory of its own: written on entry, read while it lasts, given back at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from anvil.dtypes import TORCH_OF_MLIR, itemsize
from anvil.errors import KernelError
from anvil.runtime.binding import concrete
from anvil.runtime.memory import as_bytes
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

    def __exit__(self, *exc: Any) -> None:
        if not isinstance(exc[1], KernelError):  # a crashed executor has nothing left to free
            for address in self._owned:
                self._memory.executor.free(address)

    def _place(self, name: str, buffer: Buffer) -> int:
        tensor = self._contents(name, buffer)
        if self._memory.in_process and not self._of.guard:
            if tensor is None:
                tensor = torch.empty(self._shapes[name], dtype=TORCH_OF_MLIR[buffer.dtype])
            self._held[name] = tensor.detach().contiguous()
            return self._held[name].data_ptr()
        nbytes = int(np.prod(self._shapes[name], dtype=np.int64)) * itemsize(buffer.dtype)
        address = self._memory.executor.alloc(nbytes, guard=self._of.guard)
        self._owned.append(address)
        if tensor is not None and nbytes:
            self._memory.executor.write(address, as_bytes(tensor), readonly=buffer.role in ("input", "weight"))
        return address

    def _contents(self, name: str, buffer: Buffer) -> torch.Tensor | None:
        """What the buffer holds before the run, None for nothing."""
        if buffer.role == "weight":
            return self._of.pack(buffer, self._arguments[self._of.plan.weights[name]])
        return self._arguments[name] if buffer.role in ("input", "cache") else None

    def rows(self, first: int, last: int, threads: int, timeout: float | None) -> None:
        """Run the rows ``first`` to ``last``, exclusive."""
        if last <= first:
            return
        owner = self._of
        try:
            self._memory.run(owner.program[first:last], owner.binding.words, threads=threads, timeout=timeout)
        except KernelError as error:
            raise located(owner.plan, error, first) from error

    def read(self, view: View) -> torch.Tensor:
        """A dense copy of a window on a buffer, or the window itself on memory that belongs to this run alone."""
        offset, sizes, strides = concrete(view, self._values)
        dtype = TORCH_OF_MLIR[self._of.plan.buffers[view.buffer].dtype]
        if view.buffer in self._held:
            flat = self._held[view.buffer].reshape(-1)
            whole = flat.as_strided(sizes, strides, offset)
            return whole if self._of.plan.buffers[view.buffer].role == "output" else whole.clone()
        if 0 in sizes:
            return torch.empty(sizes, dtype=dtype)
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        start = self._of.binding.addresses[view.buffer] + offset * dtype.itemsize
        raw = self._memory.read(start, span * dtype.itemsize)
        return torch.from_numpy(raw).view(dtype).as_strided(sizes, strides).contiguous()


def located(plan: Plan, error: KernelError, first: int) -> KernelError:
    """The same error with the kernel, graph node and Python line of the row it happened in."""
    row_index = getattr(error, "row", None)
    if row_index is None or not 0 <= first + row_index < len(plan.rows):
        return KernelError(f"running plan={plan.name}: {error}")
    row = plan.rows[first + row_index]
    where = f" ({row.source})" if row.source else ""
    return KernelError(f"running plan={plan.name} kernel={row.kernel} node={row.node}{where}: {error}")
