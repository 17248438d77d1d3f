"""What graph nodes stand for while they are lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from anvil.lower.generic.num import Num
from anvil.runtime.plan import Size, View


@dataclass(frozen=True)
class Tensor:
    """A tensor, as a view of memory; or, with ``generator``, of memory that need not exist.

    ``generator`` gives the element at a linear position (an i64 Num); ``view`` then walks such positions. Sizes are
    those of the PyTorch tensor; ``dtype`` is an MLIR element type name.
    """

    view: View
    dtype: str
    generator: Callable[[Num], Num] | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.view.sizes

    def seen_as(self, view: View) -> Tensor:
        return replace(self, view=view)
