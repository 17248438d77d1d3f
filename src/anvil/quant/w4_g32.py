"""w4-g32: int4 weights, groups of 32 inputs share a scale, no zero point."""

from anvil.quant.w4 import symmetric

MODE = symmetric("w4-g32", 32)
