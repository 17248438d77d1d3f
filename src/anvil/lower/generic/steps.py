"""What regions consist of: steps, and values that are readings of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from anvil.lower.generic.num import Num
from anvil.lower.values import Tensor
from anvil.runtime.plan import Size, View

Body = Callable[..., Num]
Combine = Literal["sum", "prod", "max", "min", "top", "any", "all", "sum_of_products"]


class Misfit(Exception):
    """The operation does not share the region's iteration space."""


@dataclass(frozen=True)
class Value:
    """What step ``step`` of a region computes, read in a PyTorch shape.

    ``axes`` has the loop that each dimension follows. None: all elements along that dimension are equal.
    """

    step: int
    dtype: str
    axes: tuple[int | None, ...]
    shape: tuple[Size, ...]

    def remap(self, dims: Sequence[int | None], shape: Sequence[Size]) -> Value:
        """The same value where dimension i is what dimension ``dims[i]`` was (None: a new one)."""
        axes = tuple(None if dim is None else self.axes[dim] for dim in dims)
        return Value(self.step, self.dtype, axes, tuple(shape))


@dataclass(frozen=True)
class Step:
    """One operation. ``loops`` are the loops its result varies over.

    ``cheap``: a few of these may be computed again for every turn of a loop they do not vary over. ``virtual``: it
    follows from loop indices and sizes alone, so any number may.
    """

    kind: Literal["input", "scalar", "iota", "map", "reduce", "gather"]
    dtype: str
    loops: tuple[int, ...]
    operands: tuple[int, ...] = ()
    body: Body | None = None
    combine: Combine | None = None
    view: View | None = None  # an input, one size and stride per loop; or what is gathered from, in its own dimensions
    size: Size | float = 0  # a scalar
    cheap: bool = False
    virtual: bool = False


Operand = Value | Tensor
