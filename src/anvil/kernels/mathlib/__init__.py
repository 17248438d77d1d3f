"""Elementary functions as MLIR builders: our own arithmetic, so that every target returns the same bits.

Each module here holds ``FUNCTIONS``, a dict from a function's name to its builder on f32 scalars or vectors of any
shape. Their errors over the whole of f32, denormal results included, are at most (ulp, measured on 2^25.8 evenly spaced
bit patterns; ``tests/test_kernels_mathlib.py`` holds them): exp 0.75, log 0.84, erf 1.0, tanh 1.31, rsqrt 1.49,
sin and cos 1.58, sigmoid 2.31. All are IEEE-correct at ±0, ±Inf and NaN. No library function is called: only add,
multiply, ``math.fma``, divide, square root, integer operations and selects, which no target may round differently.

The polynomials are minimax fits made for this project (linear programming over Chebyshev points, coefficients
rounded to f32 one by one and the rest refitted); each module states the fit's relative error in u = 2^-24.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from anvil.discovery import offered
from anvil.errors import UnsupportedError
from anvil.kernels.dsl import Val, cast
from anvil.mlir import ir

__all__ = ["emit", "functions"]


@functools.cache
def functions() -> dict[str, Callable[[Val], Val]]:
    """Every elementary function by name."""
    found = [item for table in offered(__name__, __path__, "FUNCTIONS") for item in table.items()]
    return dict(sorted(found))


def emit(name: str, value: ir.Value) -> ir.Value:
    """Build ``name`` of ``value`` at the current insertion point.

    ``value`` is an f32 scalar or vector; f16 and bf16 are computed in f32 and rounded once.
    Raises :class:`UnsupportedError` for an unknown name or another element type.
    """
    if name not in functions():
        raise UnsupportedError(
            f"emitting a math function: name={name!r} is unknown; expected one of {list(functions())}"
        )
    operand = Val(value)
    element = str(operand.element)
    if element not in ("f16", "bf16", "f32"):
        raise UnsupportedError(f"emitting a math function: {name} of type={value.type}; expected f16, bf16 or f32")
    return cast(functions()[name](cast(operand, "f32")), element).ssa
