"""Elementary functions as MLIR builders: our own arithmetic, so that every target returns the same bits.

Each module here holds ``FUNCTIONS``, from a function's name to its builder on f32 scalars or vectors of any shape, or
``DOUBLE``, the same on f64. What has no f32 form of its own is computed in f64 and rounded, to 0.5 ulp and a little.
Errors over the whole of f32, denormal results included, are at most (ulp, measured on 2^25.8 evenly spaced bit
patterns; ``tests/test_kernels_mathlib.py`` holds them): exp 0.75, log 0.84, erf 1.0, tanh 1.31, rsqrt 1.49, sin and cos
1.58, sigmoid 2.31. In f64 all stay below 4 ulp, most below 2 (``ops/core_functions.py``). All are IEEE-correct at ±0,
±Inf and NaN. No library function is called: only add, multiply, ``math.fma``, divide, square root, integer operations
and selects, which no target may round differently.

The polynomials are minimax fits made for this project (f32: linear programming over Chebyshev points, coefficients
rounded one by one and the rest refitted; f64: Chebyshev interpolation in 40 digits); each module states the fit's
relative error in units of u.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from anvil.discovery import offered
from anvil.errors import UnsupportedError
from anvil.kernels.dsl import Val, cast
from anvil.mlir import ir

__all__ = ["emit", "functions"]


Function = Callable[..., Val]


@functools.cache
def functions(double: bool = False) -> dict[str, Function]:
    """Every elementary function by name: those on f32, or those on f64."""
    tables = offered(__name__, __path__, "DOUBLE" if double else "FUNCTIONS")
    found = [item for table in tables for item in table.items()]
    return dict(sorted(found))


def known(name: str) -> bool:
    """Whether :func:`emit` can build the function."""
    return name in functions() or name in functions(double=True)


def emit(name: str, *values: ir.Value) -> ir.Value:
    """Build ``name`` of ``values`` at the current insertion point.

    They are floats or vectors of floats of one type; f16 and bf16 are computed in f32 and rounded once, and what has no
    f32 form in f64. Raises :class:`UnsupportedError` for an unknown name or another element type.
    """
    if not known(name):
        names = sorted({*functions(), *functions(double=True)})
        raise UnsupportedError(f"emitting a math function: name={name!r} is unknown; expected one of {names}")
    operands = [Val(value) for value in values]
    element = str(operands[0].element)
    if element not in ("f16", "bf16", "f32", "f64") or (element == "f64" and name not in functions(double=True)):
        raise UnsupportedError(f"emitting a math function: {name} of type={values[0].type}; expected a float it knows")
    single = element != "f64" and name in functions()
    wide = [
        cast(cast(operand, "f32") if element != "f64" else operand, "f32" if single else "f64") for operand in operands
    ]
    result = functions(double=not single)[name](*wide)
    return cast(cast(result, "f32") if element in ("f16", "bf16") else result, element).ssa
