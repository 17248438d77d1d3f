"""fp16: weights rounded to IEEE half precision (beyond 65504 infinite); activations and accumulation in f32."""

from __future__ import annotations

import torch

from anvil.quant.halves import half_mode

MODE = half_mode("fp16", torch.float16)
