"""w4-g128: int4 weights, groups of 128 inputs share a scale, no zero point."""

from anvil.quant.w4 import symmetric

MODE = symmetric("w4-g128", 128)
