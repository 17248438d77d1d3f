"""Parameters to what lies in memory for a weight buffer: the packing of a quantisation mode."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from anvil import quant
from anvil.errors import InputError
from anvil.kernels.panel import panel_of
from anvil.quant import Choice, QuantMode, Stored, WeightRow
from anvil.runtime.memory import as_bytes
from anvil.runtime.original import Original
from anvil.runtime.plan import Buffer
from anvil.targets.base import Target

#: Puts the contents of a weight buffer into place; given the buffer, the parameter's name, what it was, and where to.
Pack = Callable[[Buffer, str, Original, torch.Tensor], None]

_AT_A_TIME = 1 << 20  # elements of a weight that are packed at once: bounds what packing holds beside the result


class Packer:
    """How weights are packed for ``target``; ``stored`` has those that a file holds quantised already.

    ``rows`` says what became of every parameter packed so far. Errors against the originals take a pass over every
    weight, so they are measured only with ``measure``; NaN stands for "not measured". ``check`` is called with the
    name and some rows of every parameter before they are packed.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        stored: Mapping[str, Stored] | None = None,
        measure: bool = False,
        check: Callable[[str, torch.Tensor], None] | None = None,
    ) -> None:
        self._choice: Choice = quant.choose(name, stored)
        self._target = target
        self._measure = measure
        self._check = check
        self.rows: dict[tuple[str, str], WeightRow] = {}

    def __call__(self, buffer: Buffer, parameter: str, weight: Original, out: torch.Tensor) -> None:
        """Fill ``out``, of the buffer's shape. Raises :class:`InputError` for a layout no mode has on the target."""
        note = functools.partial(self._note, buffer, parameter, weight, as_bytes(out).nbytes)
        if buffer.layout == "plain":

            def copy(first: int, last: int) -> None:
                out_part = out[first:last] if out.ndim else out
                out_part.copy_(self._checked(parameter, weight.rows(first, last)))

            _each_part(weight.shape, 1, copy)
            note(buffer.dtype, lambda: out.double(), stored=False)
            return
        mode, piece = self._of_layout(buffer, weight)
        stored = self._choice.stored.get(parameter)
        if stored is not None and stored.mode == mode.name:
            numbers = stored.read()
            out.copy_(mode.pack(numbers, self._target)[piece])
            note(mode.name, lambda: mode.dequantise(numbers), stored=True)
            return
        width = panel_of(self._target).width

        def pack(first: int, last: int) -> None:
            numbers = mode.quantise(self._checked(parameter, weight.rows(first, last)))
            out[first // width : -(-last // width)].copy_(mode.pack(numbers, self._target)[piece])

        _each_part(weight.shape, width, pack)
        note(mode.name, lambda: mode.dequantise(mode.quantise(weight.whole())), stored=False)

    def _checked(self, parameter: str, values: torch.Tensor) -> torch.Tensor:
        if self._check is not None:
            self._check(parameter, values)
        return values

    def _of_layout(self, buffer: Buffer, weight: Original) -> tuple[QuantMode, str]:
        """The mode that has the buffer's layout, and the name of the tensor in it."""
        known = []
        for mode in quant.modes().values():
            for piece in mode.tensors(weight.shape[0], weight.shape[1], self._target):
                if piece.layout == buffer.layout:
                    return mode, piece.name
                known.append(piece.layout)
        raise InputError(
            f"packing weight {buffer.name}: layout={buffer.layout!r}; {self._target.name} has the layouts {known}"
        )

    def _note(
        self,
        buffer: Buffer,
        parameter: str,
        weight: Original,
        nbytes: int,
        mode: str,
        exact: Callable[[], torch.Tensor],
        *,
        stored: bool,
    ) -> None:
        error = float("nan")
        if self._measure:
            original = weight.whole().double()
            square = float(original.square().sum())
            error = float((exact() - original).square().sum()) / square if square else 0.0
        row = WeightRow(parameter, weight.shape, mode, buffer.layout, nbytes, stored, error)
        self.rows[parameter, buffer.layout] = row


def _each_part(shape: tuple[int, ...], multiple: int, work: Callable[[int, int], None]) -> None:
    """``work(first, last)`` for every part of a weight, on all cores: a part stays in the cache of one of them.

    PyTorch's own threads would take turns between short operations instead.
    """
    parts = list(_parts(shape, multiple))
    if len(parts) == 1:
        work(*parts[0])
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(lambda part: work(*part), parts))
    finally:
        torch.set_num_threads(before)


def _parts(shape: tuple[int, ...], multiple: int) -> Iterator[tuple[int, int]]:
    """First and last row of parts of a weight: few elements each, all but the last a multiple of so many rows.

    Modes treat the rows of a weight one by one, so parts are packed as the whole would be.
    """
    rows = shape[0] if shape else 1
    inner = max(1, math.prod(shape[1:]))
    step = max(1, _AT_A_TIME // inner // multiple) * multiple
    for first in range(0, rows, step):
        yield first, min(first + step, rows)
