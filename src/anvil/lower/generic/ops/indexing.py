"""Elements picked by index tensors."""

from __future__ import annotations

import torch

from anvil.graph import ops as _ops  # noqa: F401 (registers anvil::*)
from anvil.lower.generic.call import Build, Call
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Operand, Value
from anvil.lower.views import remapped
from anvil.runtime.plan import Size

aten = torch.ops.aten


def reading(operand: Operand, dims: list[int | None], shape: tuple[Size, ...]) -> Operand:
    """The same elements where dimension i is what dimension ``dims[i]`` was (None: a new one)."""
    if isinstance(operand, Value):
        return operand.remap(dims, shape)
    return operand.seen_as(remapped(operand.view, dims, shape))


def _take_row(region: Region, call: Call) -> Value:
    """Row last[b] of each sequence: x [B, S, D] -> [B, 1, D]."""
    last = reading(call["last"], [0, None, None], (call.shape[0], 1, 1))
    return region.gather(call["x"], [0, last, 2], call.shape)


def _embedding(region: Region, call: Call) -> Value:
    """Rows of a table that is not a parameter of the model."""
    indices = call["indices"]
    rank = len(indices.shape)
    rows = reading(indices, [*range(rank), None], (*indices.shape, 1))
    return region.gather(call["weight"], [rows, rank], call.shape)


def _index_select(region: Region, call: Call) -> Value:
    """Whole slices along ``dim``, in the order of the index vector."""
    source, index = call["self"], call["index"]
    rank = len(call.shape)
    dim = call["dim"] % rank
    along = reading(index, [0 if i == dim else None for i in range(rank)], _only(rank, dim, index.shape[0]))
    return region.gather(source, [along if i == dim else i for i in range(rank)], call.shape)


def _gather(region: Region, call: Call) -> Value:
    """out[i][j] = self[index[i][j]][j] for dim 0, and alike for the others."""
    source, index = call["self"], call["index"]
    rank = len(call.shape)
    dim = call["dim"] % rank if rank else 0
    return region.gather(source, [index if i == dim else i for i in range(rank)], call.shape)


def _only(rank: int, dim: int, size: Size) -> tuple[Size, ...]:
    return tuple(size if i == dim else 1 for i in range(rank))


def _index(region: Region, call: Call) -> Value:
    """``self[i, :, j]``: index tensors broadcast together; where they stand apart, their dimensions come first."""
    source, indices = call["self"], call["indices"]
    region.require(all(index is None or index.dtype not in ("i1", "ui8") for index in indices))
    places = [dim for dim, index in enumerate(indices) if index is not None]
    together = places == list(range(places[0], places[-1] + 1))
    common = max(len(indices[dim].shape) for dim in places)
    first = places[0] if together else 0
    kept = [dim for dim in range(len(source.shape)) if dim not in places]
    where: dict[int, Operand | int] = {dim: i if i < first else i + common for i, dim in enumerate(kept)}
    for dim in places:
        where[dim] = _placed(indices[dim], first + common, common + len(kept))
    return region.gather(source, [where[dim] for dim in range(len(source.shape))], call.shape, wrap=True)


def _placed(index: Operand, end: int, rank: int) -> Operand:
    """``index`` with its dimensions right before dimension ``end`` of a shape of ``rank`` dimensions."""
    own = len(index.shape)
    dims = [position - (end - own) if end - own <= position < end else None for position in range(rank)]
    return reading(index, dims, tuple(1 if dim is None else index.shape[dim] for dim in dims))


OPS: dict[object, Build] = {
    torch.ops.anvil.take_row.default: _take_row,
    aten.embedding.default: _embedding,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
}
