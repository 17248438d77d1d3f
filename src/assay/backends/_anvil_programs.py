"""Programs that reach a compiled model through anvil's own passes, never by a pattern in PyTorch code.

A spec describes them in plain PyTorch; what anvil is given is its operator (``torch.ops.anvil``) under the spec's name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

ops = torch.ops.anvil


class _Calls(torch.nn.Module):
    """One function as a module; the exporter names inputs after its parameters."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.forward = function


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5


def _cached(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
    return ops.attention_cached(q, k, v, past, _scale(q), None, None)


def _capped_window(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
    return ops.attention_cached(q, k, v, past, _scale(q), 4, 2.0)


def _int8(q: Tensor, k: Tensor, k_scale: Tensor, v: Tensor, v_scale: Tensor, past: Tensor) -> Tensor:
    return ops.attention_cached(q, k, v, past, _scale(q), None, None, k_scale, v_scale)


def _ring(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
    return ops.attention_ring(q, k, v, past, _scale(q), 8, None)


def _paged(q: Tensor, k: Tensor, v: Tensor, table: Tensor, past: Tensor) -> Tensor:
    return ops.attention_paged(q, k, v, table, past, _scale(q), None, None)


def _latent(q: Tensor, rotated: Tensor, latents: Tensor, up_k: Tensor, up_v: Tensor, past: Tensor) -> Tensor:
    """Absorbed: queries are taken to the latents, and what comes back to values."""
    absorbed = torch.cat((torch.matmul(q, up_k), rotated), dim=-1)
    scale = (q.shape[-1] + rotated.shape[-1]) ** -0.5 * MSCALE * MSCALE
    attended = ops.attention_latent(absorbed, latents, past, scale, up_k.shape[-1])
    return torch.matmul(attended, up_v.transpose(1, 2))


def _over_latents(q: Tensor, latents: Tensor, scale: float, width: int) -> Tensor:
    """A whole text over its own latents."""
    return ops.attention_latent(q, latents, torch.zeros(q.shape[0], dtype=torch.int64), scale, width)


#: YaRN's correction of the scale for a text 40 times as long as the model was trained on: 0.1 ln 40 + 1.
MSCALE = 1.3688879454113936

PROGRAMS: Mapping[str, torch.nn.Module] = {
    "attention_cached": _Calls(_cached),
    "attention_capped_window": _Calls(_capped_window),
    "attention_cached_f16": _Calls(_cached),
    "attention_cached_bf16": _Calls(_cached),
    "attention_cached_int8": _Calls(_int8),
    "attention_ring": _Calls(_ring),
    "attention_paged": _Calls(_paged),
    "attention_latent": _Calls(_latent),
}


def given(name: str, module: torch.nn.Module) -> torch.nn.Module:
    """What anvil is given for the program called ``name``: in place of all of it, or of its attention over latents."""
    if hasattr(module, "over_latents"):
        module = copy.copy(module)
        setattr(module, "over_latents", _over_latents)  # noqa: B010 (a method of this one module)
    return PROGRAMS.get(name, module)
