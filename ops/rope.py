"""rope: rotary position embedding, half-split pairing (j, j + D/2)."""

import numpy as np
import torch

from assay import bounds, reference
from assay.metamorphic import THREADS, prefix, reversal, scaling
from assay.spec import Cost, Known, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, span


class Rope(torch.nn.Module):
    def forward(self, x, cos, sin):
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos.unsqueeze(1) + rotated * sin.unsqueeze(1)


def angles(shape: tuple[int, ...], d: Dims) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of positions that start elsewhere in each row."""
    positions = np.arange(shape[1]) + 7 * np.arange(shape[0])[:, None]
    return reference.rope_angles(positions, d["D"])


def cosine(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return angles(shape, d)[0]


def sine(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return angles(shape, d)[1]


def quarter_turns(rng: np.random.Generator, d: Dims) -> tuple[np.ndarray, ...]:
    """Integers rotated by multiples of 90°, a turn of its own for every pair: swaps and signs, no rounding."""
    x = rng.integers(-1000, 1000, (d["B"], d["H"], d["S"], d["D"]))
    turn = rng.integers(0, 4, (d["B"], d["S"], d["D"] // 2))
    turn = np.concatenate([turn, turn], axis=-1)
    return x, np.array([1, 0, -1, 0])[turn], np.array([0, 1, 0, -1])[turn]


def halves() -> Known:
    """Position 1, base 10000, D = 4: angles 1 and 0.01 on the pairs (0, 2) and (1, 3), never on neighbours."""
    cos, sin = reference.rope_angles(np.ones((1, 1)), 4)
    right = np.array([-1.98411, 1.95990, 2.46238, 4.01980])[None, None, None]
    x = np.array([1, 2, 3, 4], np.float32)[None, None, None]
    return Known("half-split pairs", (x, cos, sin), right, digits=3e-6, repeat="B")


def strided_slice() -> Known:
    """The last 4 of 12 features, heads-first; position 0 is unchanged. Layouts are the test's."""
    x = np.sin(0.37 * np.arange(2 * 3 * 2 * 12)).astype(np.float32).reshape(2, 3, 2, 12)[..., 8:].swapaxes(1, 2)
    cos, sin = reference.rope_angles(np.broadcast_to(np.arange(3), (2, 3)), 4)
    right = reference.rope(x.astype(np.float64), cos, sin)
    right[:, :, 0] = x[:, :, 0]
    return Known("a strided slice", (x, cos, sin), right, digits=1e-6)


ROPE = OpSpec(
    name="rope",
    module=Rope,
    golden=reference.rope,
    bound=bounds.rope,
    operands=(
        Operand("x", "B H S D"),
        Operand("cos", "B S D", role="fixed", fill=cosine),
        Operand("sin", "B S D", role="fixed", fill=sine),
    ),
    shapes=Shapes(
        free={"B": span(0, 3), "H": span(1, 4), "S": span(0, 6)},
        static=tuple({"D": d} for d in (8, 2, 6, 16, 30, 34, 64, 80)),
        size=lambda d: 8 * d["B"] * d["H"] * d["S"] * d["D"],
    ),
    result="B H S D",
    cost=Cost(
        lambda d: 3 * d["B"] * d["H"] * d["S"] * d["D"],
        lambda d, size: size * d["B"] * d["S"] * d["D"] * (2 * d["H"] + 2),
    ),
    exact=quarter_turns,
    known=(halves(), strided_slice()),
    properties=(THREADS, prefix("B", "H", "S"), reversal("H"), scaling("x")),
)
SPECS = (ROPE,)
