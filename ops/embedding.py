"""embedding: y[m] = w[ids[m]]. Moves bits, computes nothing: equal to the bit, NaN payloads aside."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from assay import bounds, reference
from assay.formats import I64
from assay.metamorphic import PACKED_PLAIN, THREADS, prefix
from assay.quantised import TABLES, embedding_in_mode
from assay.spec import Cost, Operand, OpSpec
from assay.strategies.shapes import Dims, Shapes, around_tiles, choice


class Embedding(torch.nn.Module):
    def forward(self, ids, w):
        return F.embedding(ids, w)


def ids(rng: np.random.Generator, shape: tuple[int, ...], d: Dims) -> np.ndarray:
    return rng.integers(0, d["V"], shape)


OPERANDS = (Operand("ids", "M", role="fixed", fill=ids, format=I64), Operand("w", "V D", role="weight"))
EMBEDDING = OpSpec(
    name="embedding",
    module=Embedding,
    golden=reference.embedding,
    bound=bounds.exact,
    operands=OPERANDS,
    shapes=Shapes(free={"M": around_tiles(), "V": choice(1, 2, 15, 16, 17, 33, 50), "D": around_tiles()}),
    result="M D",
    cost=Cost(lambda d: 0, lambda d, size: 2 * size * d["M"] * d["D"] + 8 * d["M"]),
    values=("normal",),
    specials=(),
    signed_zero=True,
    properties=(THREADS, PACKED_PLAIN, prefix("M")),
    quants=("fp32", *TABLES),
    quantised=partial(embedding_in_mode, OPERANDS, (THREADS, prefix("M"))),
)
SPECS = (EMBEDDING,)
