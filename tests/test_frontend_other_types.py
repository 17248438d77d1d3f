"""Spellings that the named kernels take in float32 are compiled as they are written in every other type."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from assay import backends
from assay.backends.protocol import Program

X, W = (3, 8), (8,)
HEADS, TABLE = (1, 2, 3, 8), (1, 1, 3, 8)


class SwiGLU(torch.nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


class RMSNorm(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class LlamaRMSNorm(torch.nn.Module):
    """Computed in float32, whatever comes in."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class NativeRMSNorm(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight)


class Rope(torch.nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (SwiGLU(), (X, X)),
        (RMSNorm(), (X, W)),
        (LlamaRMSNorm(), (X, W)),
        (NativeRMSNorm(), (X, W)),
        (Rope(), (HEADS, TABLE, TABLE)),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, torch.nn.Module) else "",
)
def test_a_spelling_of_a_named_kernel_is_compiled_in_every_type(
    module: torch.nn.Module, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(7)
    inputs = tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    program = Program(type(module).__name__, module, inputs, ({},) * len(inputs))
    (got,) = backends.load("anvil").compile(program, "x86_64-avx2").run(*inputs)
    assert got.dtype == dtype
    exact = module(*(tensor.double() for tensor in inputs))
    narrow = torch.float32 if isinstance(module, LlamaRMSNorm) and dtype == torch.float64 else dtype
    torch.testing.assert_close(got.double(), exact, rtol=8 * torch.finfo(narrow).eps, atol=8 * torch.finfo(narrow).eps)
