"""Error along the residual stream, layer by layer, against a bound taken from the network itself.

How much an error in one layer grows in the later ones is a property of the weights, so no closed formula bounds it.
It is measured instead: a float64 run in which every linear layer's output is moved by the matmul's own bound,
c·√K·u·S with S = |x|·|W| and c = 2 (the warning level), up or down at random, shows how far a model may drift whose
every contraction is just inside its bound. An error beyond that drift has a cause other than float32 rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from assay.tokens.reference import Reference, hooked
from assay.tokens.tolerance import UNIT_ROUNDOFF, mode

WARN = 2.0
DRAWS = 3  # a row whose error sits in one huge activation is a single draw: one alone could come out near zero


@dataclass(frozen=True)
class LayerError:
    """One layer: root mean square error of the residual stream relative to its size, and over its bound."""

    name: str
    error: float
    headroom: float


@dataclass(frozen=True)
class LayerReport:
    """All layers in order. ``growth`` is the exponent of error against depth: ½ is rounding, 1 is a bias."""

    layers: tuple[LayerError, ...]
    growth: float

    @property
    def first_outside(self) -> str:
        """Name of the first layer outside its bound, or empty."""
        return next((layer.name for layer in self.layers if not layer.headroom <= 1), "")

    @property
    def headroom(self) -> float:
        return max(layer.headroom for layer in self.layers)


def layer_report(exact: dict[str, np.ndarray], drift: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> LayerReport:
    """Compare ``got`` with ``exact``, both name -> [T, hidden]; ``drift`` -> [T] is the bound of each row's error norm.

    Raises ``KeyError`` when ``got`` lacks a layer.
    """
    layers = []
    for name, want in exact.items():
        error = np.linalg.norm(got[name].astype(np.float64) - want, axis=1)
        relative = np.sqrt(np.sum(error**2) / np.sum(want**2))
        layers.append(LayerError(name, float(relative), float((error / drift[name]).max())))
    return LayerReport(tuple(layers), _growth([layer.error for layer in layers]))


def rounding_drift(
    reference: Reference, ids: Sequence[int], exact: dict[str, np.ndarray], quant: str = "fp32", seed: int = 0
) -> dict[str, np.ndarray]:
    """Allowed norm of the error of each row of what was watched in the run ``exact``: name -> [T].

    The root mean square over a few runs with every linear layer disturbed; ``exact`` is the undisturbed one.
    """
    generator = torch.Generator().manual_seed(seed)
    squares = {name: np.zeros(len(rows)) for name, rows in exact.items()}
    unit = UNIT_ROUNDOFF[mode(quant).stream]

    def disturb(module: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        magnitude = torch.nn.functional.linear(inputs[0].abs(), module.weight.abs())
        sign = torch.randint(0, 2, output.shape, generator=generator, dtype=output.dtype) * 2 - 1
        return output + sign * (WARN * module.in_features**0.5 * unit) * magnitude

    inner = [m for layer in reference.layers.values() for m in layer.modules() if isinstance(m, torch.nn.Linear)]
    with hooked({module: disturb for module in inner}):
        for disturbed in reference.passes([ids] * DRAWS, tuple(exact)):
            for name, rows in exact.items():
                squares[name] += np.sum((disturbed.seen[name] - rows) ** 2, axis=1)
    return {name: np.sqrt(total / DRAWS) for name, total in squares.items()}


def _growth(errors: list[float]) -> float:
    """Slope of log(error) over log(depth)."""
    if len(errors) < 3 or not all(0 < error < np.inf for error in errors):
        return float("nan")
    depth = np.log(np.arange(1, len(errors) + 1))
    return float(np.polyfit(depth, np.log(errors), 1)[0])
