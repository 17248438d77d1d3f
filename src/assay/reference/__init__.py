"""fp64 goldens. Each is the formula, in numpy, on float64 arrays that hold exactly the compiled side's inputs.

Boring on purpose: no blocking, no masks by addition, no in-place update, nothing shared with a compiler.
"""

from assay.reference.attention import attention, kv_append
from assay.reference.pointwise import add, mul, silu, swiglu
from assay.reference.rope import rope, rope_angles
from assay.reference.rows import argmax, embedding, linear, rms_norm, softmax

__all__ = [
    "add",
    "argmax",
    "attention",
    "embedding",
    "kv_append",
    "linear",
    "mul",
    "rms_norm",
    "rope",
    "rope_angles",
    "silu",
    "softmax",
    "swiglu",
]
