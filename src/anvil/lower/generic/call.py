"""One call of an op as its builder sees it: operands ready, arguments by name, types promoted as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTE
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from anvil.dtypes import mlir_name
from anvil.lower.generic.num import Num, const
from anvil.lower.generic.region import Region
from anvil.lower.generic.steps import Value
from anvil.lower.sizes import broadcast_size
from anvil.lower.values import Tensor
from anvil.runtime.plan import Size

__all__ = ["PROMOTE", "Build", "Call", "broadcast"]


@dataclass(frozen=True)
class Call:
    """``arguments`` by parameter name, defaults filled in: tensors are operands, symbolic numbers sizes.

    ``shape`` and ``dtype`` describe the result (the first one, if there are several).
    """

    node: Node
    arguments: dict[str, Any]
    shape: tuple[Size, ...]
    dtype: str

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def compute_dtype(self, names: Sequence[str], kind: PROMOTE) -> str:
        """The type PyTorch computes in: the common type of the named arguments, and f32 for f16 and bf16."""
        parameters = [parameter.name for parameter in self.node.target._schema.arguments]  # type: ignore[union-attr]
        given = dict(zip(parameters, self.node.args, strict=False)) | self.node.kwargs
        fakes = [value.meta["val"] if isinstance(value, Node) else value for value in map(given.get, names)]
        return mlir_name(elementwise_dtypes(*[f for f in fakes if f is not None], type_promotion_kind=kind)[0])


Build = Callable[[Region, Call], "Value | tuple[Value, ...]"]
"""How an op becomes steps of a region. Raises Misfit where it cannot join."""


def is_operand(value: Any) -> bool:
    return isinstance(value, (Value, Tensor))


def bind(node: Node, resolve: Callable[[Any], Any]) -> dict[str, Any]:
    """The arguments of an op's call by parameter name; ``resolve`` turns nodes into operands and sizes."""
    schema = node.target._schema  # type: ignore[union-attr]
    bound: dict[str, Any] = {}
    for position, parameter in enumerate(schema.arguments):
        if position < len(node.args):
            value = node.args[position]
        else:
            value = node.kwargs.get(parameter.name, parameter.default_value)
        bound[parameter.name] = [resolve(v) for v in value] if isinstance(value, (list, tuple)) else resolve(value)
    return bound


def broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The common shape: of each dimension the size that is not 1, if there is one."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(broadcast_size(sizes) for sizes in zip(*padded, strict=True))


def as_num(value: Any, dtype: str) -> Any:
    """A Num converted to ``dtype``, or a Python number as a constant of it; None stays None."""
    if isinstance(value, Num):
        return value.to(dtype)
    return const(value, dtype) if isinstance(value, (int, float)) else value
