"""kv_append: new keys or values stored in a cache behind those already there, at a past of its own for each row."""

import numpy as np
import torch

from assay import bounds, reference
from assay.formats import I64
from assay.metamorphic import THREADS, reversal
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles, span


class KvAppend(torch.nn.Module):
    def forward(self, cache, new, past):
        slots = past[:, None] + torch.arange(new.shape[2])
        return cache.scatter(2, slots[:, None, :, None].expand(new.shape), new)


def past(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    """Anything that fits, one row always up to the last slot."""
    count = rng.integers(0, d["P"] + 1, shape)
    count[:1] = d["P"]
    return count


KV_APPEND = OpSpec(
    name="kv_append",
    module=KvAppend,
    golden=reference.kv_append,
    bound=bounds.exact,
    operands=(
        Operand("cache", "B H C D"),
        Operand("new", "B H S D"),
        Operand("past", "B", role="fixed", fill=past, format=I64),
    ),
    shapes=Shapes(
        free={"B": span(0, 3), "H": span(1, 4), "S": span(0, 5), "P": span(0, 9), "D": around_tiles()},
        derived={"C": lambda d: d["S"] + d["P"]},
    ),
    result="B H C D",
    cost=Cost(lambda d: 0, lambda d, size: 2 * size * d["B"] * d["H"] * d["S"] * d["D"]),
    values=("normal",),
    specials=("zeros", "nan", "infinite"),
    signed_zero=True,
    properties=(THREADS, reversal("B"), reversal("H")),
)
SPECS = (KV_APPEND,)
