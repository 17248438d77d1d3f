"""Sizes for which an op has no result: the largest of no elements, a window over nothing, an index tensor that is
larger than what it indexes. They are known when a run's sizes are, before any kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

import sympy
import torch
from torch.fx import Node

from anvil.errors import RefusedError, SizeError
from anvil.graph.describe import describe_node
from anvil.graph.rewrite import argument
from anvil.lower.sizes import same, simplify
from anvil.runtime.plan import Requirement

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering

aten = torch.ops.aten

Rule = Callable[["Lowering", Node], Iterator[Requirement]]
"""What the sizes of a call must be."""


def require_sizes(low: Lowering, node: Node) -> None:
    """Note what the run must require of its sizes. Raises :class:`SizeError` where no run can fulfil it, and
    :class:`RefusedError` for a rank that the op does not take."""
    rule = RULES.get(node.target)
    for requirement in rule(low, node) if rule else ():
        if not isinstance(requirement.size, int):
            low.requirements.append(requirement)
        elif requirement.size < requirement.least:
            raise SizeError(f"lowering program {low.program.name!r}: {requirement.message}")


def _not_empty(low: Lowering, node: Node, dims: Sequence[int], why: str) -> Iterator[Requirement]:
    source = argument(node, node.target._schema.arguments[0].name)  # type: ignore[union-attr]
    shape = low.shape(source)
    for dim in dims:
        what = f"dimension {dim} of {source.name} is empty, expected at least one element {why}"
        yield Requirement(shape[dim], 1, f"{describe_node(node)}: {what}")


def _chosen_along(low: Lowering, node: Node) -> Iterator[Requirement]:
    """One element is chosen along ``dim``, one or several or, where none is given, all dimensions."""
    rank = len(low.shape(argument(node, "self")))
    names = {parameter.name for parameter in node.target._schema.arguments}  # type: ignore[union-attr]
    given = argument(node, "dim") if "dim" in names else None
    given = [given] if isinstance(given, int) else given or range(rank)
    yield from _not_empty(low, node, sorted({dim % rank for dim in given}) if rank else (), "to choose from")


def _norm(low: Lowering, node: Node) -> Iterator[Requirement]:
    """Only sums have a value for nothing: the norms of order 0 and of finite positive order."""
    order = argument(node, "ord")
    if order < 0 or order == inf:
        yield from _chosen_along(low, node)


def _windows(spatial: int, exempt: Sequence[int | None]) -> Rule:
    """Windows slide over the last ``spatial`` dimensions. Of those before them, ``exempt[i]`` may be empty where there
    are i of them: PyTorch lets a batch be, and here and there a channel. None: it does not take i of them."""

    def rule(low: Lowering, node: Node) -> Iterator[Requirement]:
        rank = len(low.shape(argument(node, node.target._schema.arguments[0].name)))  # type: ignore[union-attr]
        first = dict(enumerate(exempt, spatial)).get(rank)
        if first is None:
            taken = " or ".join(str(spatial + i) for i, own in enumerate(exempt) if own is not None and i)
            raise RefusedError(f"{describe_node(node)}: rank {rank}, expected {taken}")
        yield from _not_empty(low, node, range(first, rank), "to look at")

    return rule


def _convolution(low: Lowering, node: Node) -> Iterator[Requirement]:
    """The kernel fits into the padded input, which has elements unless the batch or the channels are none; that is also
    what PyTorch wants of the transposed form, whose result may be cut to nothing, but not to less."""
    lists = [argument(node, name) for name in ("stride", "padding", "dilation", "output_padding")]
    x, weight = low.shape(argument(node, "input")), low.shape(argument(node, "weight"))
    for dim, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        stride, padding, dilation, more = (low.size(own[dim if len(own) > 1 else 0]) for own in lists)
        reach, said = dilation * (kernel - 1) + 1, f"{describe_node(node)}: dimension {dim + 2} of the input is"
        rest = (
            (size - 1) * stride + reach + more - 2 * padding
            if argument(node, "transposed")
            else size + 2 * padding - reach
        )
        yield Requirement(simplify(rest), 0, f"{said} too small for the kernel and the padding, expected more elements")
        some = simplify(sympy.Max(size, 1 - x[0], 1 - x[1]))
        yield Requirement(some, 1, f"{said} empty, expected at least one element")


def _one_index_each(low: Lowering, node: Node) -> Iterator[Requirement]:
    """The index is a vector, or one number."""
    rank = len(low.shape(argument(node, "index")))
    if rank > 1:
        raise RefusedError(f"{describe_node(node)}: the index has rank {rank}, expected 0 or 1")
    return iter(())


def _fits(low: Lowering, node: Node) -> Iterator[Requirement]:
    """``index`` is nowhere larger than ``self``, but along ``dim``."""
    source, index = argument(node, "self"), argument(node, "index")
    shape, own = low.shape(source), low.shape(index)
    if not shape or not own:
        return
    dim = argument(node, "dim") % len(shape)
    for other, (size, limit) in enumerate(zip(own, shape, strict=True)):
        if other != dim and not same(size, limit):
            what = f"dimension {other} of {index.name} is larger than that of {source.name}, expected at most its size"
            yield Requirement(simplify(limit - size), 0, f"{describe_node(node)}: {what}")


def _overloads(*names: str) -> list[object]:
    """All that PyTorch has under these names."""
    packets = [getattr(aten, name) for name in names]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


_PADS = ("reflection", "replication")
_EVEN_MEANS = {1: ("adaptive_avg_pool1d",), 2: ("_adaptive_avg_pool2d",)}
_RESIZED = {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
    2: ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d"),
    3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
}
RULES: dict[object, Rule] = {
    **dict.fromkeys(
        (
            aten.amax.default,
            aten.amin.default,
            aten.argmax.default,
            aten.argmin.default,
            aten.max.default,
            aten.max.dim,
            aten.min.default,
            aten.min.dim,
        ),
        _chosen_along,
    ),
    aten.linalg_vector_norm.default: _norm,
    aten.convolution.default: _convolution,
    aten.gather.default: _fits,
    aten.index_select.default: _one_index_each,
    **{op: _windows(n, (0, 0, 1)) for n in (1, 2, 3) for op in _overloads(*[f"{pad}_pad{n}d" for pad in _PADS])},
    **{op: _windows(n, (0, 0, 1)) for n in (1, 2, 3) for op in _overloads(f"avg_pool{n}d")},
    **{op: _windows(n, (0, 0, 1)) for n in (2, 3) for op in _overloads(f"max_pool{n}d_with_indices")},
    **{op: _windows(n, (0, 1, 1)) for n in (2, 3) for op in _overloads(f"adaptive_max_pool{n}d")},
    **{op: _windows(n, (0, 1, 2)) for n in (1, 2) for op in _overloads(*_EVEN_MEANS[n])},
    **{op: _windows(3, (0, 1, 1)) for op in _overloads("_adaptive_avg_pool3d")},
    **{op: _windows(n, (None, None, 1)) for n, names in _RESIZED.items() for op in _overloads(*names)},
}
