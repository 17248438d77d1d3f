"""bf16: weights rounded to 16 bits with the exponent of f32; activations and accumulation in f32."""

from __future__ import annotations

import torch

from anvil.quant.halves import half_mode

MODE = half_mode("bf16", torch.bfloat16)
