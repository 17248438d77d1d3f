"""Quantisation and float functions with known right values, as PyTorch programs: rows of docs/known-inputs.md."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from known_row import Row, t

i8, i32, i64, u8 = torch.int8, torch.int32, torch.int64, torch.uint8
f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32


def quantised(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.clamp(torch.round(x / scale), -128, 127).to(i8)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[R, C] bytes, low nibble first, to [R, 4, C / 2]."""
    return torch.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], 4, -1)


def two_formats(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = packed.to(i8)
    return codes - 8, (codes ^ 8) - 8


def sub_blocks(codes: torch.Tensor, scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (codes.reshape(4, 8) * scales[:, None]).reshape(-1) @ x


def error_of(w: torch.Tensor, bits: int) -> torch.Tensor:
    """Mean squared error of symmetric rounding to nearest in groups of 32."""
    groups = w.reshape(-1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (torch.round(groups / scale) * scale - groups).square().mean()


def falling(w: torch.Tensor) -> torch.Tensor:
    errors = torch.stack([error_of(w, bits) for bits in (3, 4, 5, 6, 8)])
    return errors[1:] < errors[:-1]


def packed_bytes() -> torch.Tensor:
    pairs = torch.arange(16).reshape(8, 2)
    return (pairs[:, 0] + 16 * pairs[:, 1]).to(u8).repeat(8, 1)


def codes_of(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = w.abs().max() / 127
    return torch.round(w / scale).to(i8), torch.round(w.to(bf16).to(f32) / scale).to(i8)


BLOCK = torch.arange(32) % 16
TAIL = [-5.533907, -5.531643, -0.0]
NUMBERS = [
    Row(
        28,
        "f16 quantised to i8 just above a half",
        quantised,
        (t([0.050018, -0.050018], f16), t(0.09998, f16)),
        (t([1, -1], i8),),
        0,
        ("N", ""),
        ("N", "N"),
    ),
    Row(
        29,
        "a quotient by a computed scale",
        lambda x, w: torch.round(x / (w / 255)),
        (t([-2.5]), t([5.0])),
        (t([-127.0]),),
        0,
        ("N", "."),
        ("N", "N"),
    ),
    Row(
        30,
        "nibbles, the low one first",
        nibbles,
        (packed_bytes(),),
        (torch.arange(16).to(u8).reshape(4, 4).repeat(8, 1, 1),),
        0,
        ("R.",),
        ("R", "R.."),
    ),
    Row(
        31,
        "a zero point of 8 and a signed nibble",
        two_formats,
        (t([0, 7, 8, 15], u8),),
        (t([-8, -1, 0, 7], i8), t([0, 7, -8, -1], i8)),
        0,
        ("N",),
        ("N", "N"),
    ),
    Row(
        32,
        "a single block",
        lambda c, x: ((c.to(f32) - 8) * 0.5) @ x,
        (BLOCK.to(u8), torch.ones(32)),
        (t(-8.0),),
        0,
        ("K", "K"),
    ),
    Row(
        34,
        "scales of sub-blocks of 8",
        sub_blocks,
        (torch.ones(32), t([1, 2, 4, 8]), t([1, 2, 3, 4]).repeat_interleave(8)),
        (t(392.0),),
    ),
    Row(
        35,
        "more bits, smaller error",
        falling,
        (torch.sin(0.37 * torch.arange(4096)),),
        (t([True] * 4, torch.bool),),
    ),
    Row(
        36,
        "quantised before or after narrowing",
        codes_of,
        (t([0.3, 0.3032, 1.0]),),
        (t([38, 39, 127], i8), t([38, 38, 127], i8)),
        0,
        ("N",),
    ),
    *(
        Row(
            39,
            f"convolution with {channels} channels",
            F.conv2d,
            (torch.ones(1, channels, 3, 3), torch.ones(channels, channels, 2, 2)),
            (torch.full((1, channels, 2, 2), 4.0 * channels),),
        )
        for channels in (15, 17)
    ),
    Row(
        39,
        "depthwise convolution",
        lambda x, w: F.conv2d(x, w, groups=17),
        (torch.ones(1, 17, 3, 3), torch.ones(17, 1, 2, 2)),
        (torch.full((1, 17, 2, 2), 4.0),),
    ),
    *(
        Row(
            46,
            f"{name} near overflow",
            getattr(torch, name),
            (t([88.85, 89, 89.2]),),
            (t([1.93212e38, 2.24481e38, 2.74180e38]),),
            5e-6,
            ("N",),
            ("N", "N"),
        )
        for name in ("sinh", "cosh")
    ),
]
