"""w4-g32z: int4 weights, groups of 32 inputs share a scale and an integer zero point."""

from anvil.quant.w4 import with_zero_point

MODE = with_zero_point("w4-g32z", 32)
