"""Integers, extremes and conversions with known right values: rows of docs/known-inputs.md."""

from __future__ import annotations

from math import inf

import torch
import torch.nn.functional as F
from known_row import Row, t

i8, i16, i32, i64, u8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8
f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32

TIES = t([[5, -3], [5, 7], [-100, 7]], i16)
POOLED = (torch.arange(48) % 7).float().reshape(4, 4, 3)
BYTES = (5 * torch.arange(56) % 256).to(u8).reshape(7, 8)
SIGNED = (torch.arange(72) % 11 - 5).to(i8).reshape(8, 9)
PRODUCT = (BYTES.to(i32) - 128) @ SIGNED.to(i32)
assert PRODUCT[0].tolist() == [-229, -35, 434, 573, 987, 103, 462, -422, -118]
assert PRODUCT[6].tolist() == [-21, 1245, -30, 1181, -149, -137, -1522, -1510, -134]
CUBE = (torch.arange(56) ** 2 % 13 - 6).to(i32).reshape(2, 7, 4)
SUMS = torch.stack([CUBE[:, : i + 1].sum(1) for i in range(7)], 1)


def product(m: int, k: int, n: int) -> tuple[torch.Tensor, ...]:
    """i8 A[i, k] = i - k, B[k, j] = (k + 2j) mod 5 - 2, accumulator 7."""
    a = (torch.arange(m)[:, None] - torch.arange(k)).to(i8)
    b = ((torch.arange(k)[:, None] + 2 * torch.arange(n)) % 5 - 2).to(i8)
    return torch.full((m, n), 7, dtype=i32), a, b


def accumulated(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return c + a.to(i32) @ b.to(i32)


def counted(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rows = [[7 + sum(int(x) * int(y) for x, y in zip(r, q, strict=True)) for q in b.t()] for r in a]
    return t(rows, i32).reshape(c.shape)


assert counted(*product(3, 5, 2)).tolist() == [[-3, 12]] * 3
LEFT, RIGHT = (
    t([[238, 115, 94], [245, 111, 102], [158, 225, 48]], u8),
    t([[25, 36, 125], [42, -123, 76], [-81, -86, 35]], i8),
)
POWERS = t([0, 1e-4, 60, 255], f16)

INTEGERS = [
    Row(
        17,
        "argmax of i16 with ties, both dimensions",
        lambda x: (x.argmax(0), x.argmax(1)),
        (TIES,),
        (t([0, 1], i64), t([0, 1, 1], i64)),
        0,
        ("MN",),
    ),
    Row(
        18,
        "argmax behind a transpose and pooling",
        lambda x: F.max_pool1d(x.transpose(0, 1), 2, 1).argmax(-1),
        (POOLED,),
        (t([[1, 0, 1, 1], [1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 0, 1]], i64),),
    ),
    *(
        Row(
            20,
            f"floor_divide of {dtype}",
            torch.floor_divide,
            (t([-7, 7], dtype), t([2, -2], dtype)),
            (t([-4, -4], dtype),),
            0,
            ("N", "N"),
            ("N", "N"),
        )
        for dtype in (i64, i32)
    ),
    Row(
        21,
        "remainder has the divisor's sign",
        torch.remainder,
        (t([-7, 7], i64), t([2, -2], i64)),
        (t([1, -1], i64),),
        0,
        ("N", "N"),
        ("N", "N"),
    ),
    Row(
        21,
        "remainder of floats and infinity",
        torch.remainder,
        (t([-7.5, 7.5, -0.5, 0.5]), t([2, -2, inf, -inf])),
        (t([0.5, -0.5, inf, -inf]),),
        0,
        ("N", "N"),
        ("N", "N"),
    ),
    Row(
        21,
        "fmod has the dividend's sign",
        torch.fmod,
        (t([-7, 7], i64), t([2, -2], i64)),
        (t([-1, 1], i64),),
        0,
        ("N", "N"),
        ("N", "N"),
    ),
    *(
        Row(
            22,
            f"division rounded by {mode}",
            lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode),
            (t([-7, -1, 7, 9], i32), t([2, 2, -2, -4], i32)),
            (t(right, i32),),
            0,
            ("N", "N"),
            ("N", "N"),
        )
        for mode, right in (("floor", [-4, -1, -4, -3]), ("trunc", [-3, 0, -3, -2]))
    ),
    Row(
        23,
        "bytes of 128 and more stay positive",
        lambda a, b: (a.to(i32) - 128) @ b.to(i32),
        (BYTES, SIGNED),
        (PRODUCT,),
        0,
        ("MK", "KN"),
    ),
    Row(
        24,
        "cumsum of bytes",
        lambda x, y: (x.cumsum(0), y.cumsum(0)),
        (t([200, 100, 50], u8), t([100, 100, -128], i8)),
        (t([200, 300, 350], i64), t([100, 200, 72], i64)),
        0,
        ("N", "N"),
    ),
    Row(
        25,
        "cumsum with and without a type",
        lambda x: (x.cumsum(1), x.cumsum(1, dtype=i32), x.cumsum(1, dtype=f32)),
        (CUBE,),
        (SUMS, SUMS.to(i32), SUMS.float()),
        0,
        ("BMN",),
    ),
    *(
        Row(
            26,
            f"a product over nothing, {dtype}",
            torch.mm,
            (torch.zeros(2, 0, dtype=dtype), torch.zeros(0, 3, dtype=dtype)),
            (torch.zeros(2, 3, dtype=dtype),),
            0,
            ("MK", "KN"),
        )
        for dtype in (i8, i32, f32)
    ),
    Row(
        27,
        "neg and sub of bytes wrap",
        lambda x: (-x, x * 0 - 1),
        (t([1, 0, 255, 128], u8),),
        (t([255, 0, 1, 128], u8), t([255] * 4, u8)),
        0,
        ("N",),
        ("N", "N"),
    ),
    *(
        Row(
            40,
            f"i8 product at run-time sizes {sizes}",
            accumulated,
            product(*sizes),
            (counted(*product(*sizes)),),
            0,
            ("MN", "MK", "KN"),
        )
        for sizes in ((1, 1, 1), (3, 5, 2), (8, 16, 8), (9, 17, 7))
    ),
    Row(
        42,
        "f32 to f16, nearest even",
        lambda x: x.to(f16),
        (t([0.4999, 0.49990, 65519, 65520, 6e-8, 2.9e-8]),),
        (t([0.5, 0.5, 65504, inf, 2.0**-24, 0], f16),),
        0,
        ("N",),
        ("N", "N"),
    ),
    Row(
        43,
        "maximum of bf16",
        lambda x: x.max(),
        (t([1, -2.5, 3.140625, 0.0078125, -7], bf16),),
        (t(3.140625, bf16),),
        0,
        ("N",),
    ),
    Row(
        43,
        "median and sort of bf16",
        lambda x: (x.median(), x.sort()[0]),
        (t([1, -2.5, 3.140625, 0.0078125, -7], bf16),),
        (t(0.0078125, bf16), t([-7, -2.5, 0.0078125, 1, 3.140625], bf16)),
        0,
        ("N",),
    ),
    Row(
        44,
        "squares and cubes in f16",
        lambda x: (x**2, x**3),
        (POWERS,),
        (t([0, 0, 3600, 65024], f16), t([0, 0, inf, inf], f16)),
        0,
        ("N",),
    ),
    Row(44, "roots in f16", lambda x: x**0.5, (POWERS,), (t([0, 1e-2, 7.746, 15.97], f16),), 1e-3, ("N",), ("N", "N")),
    Row(
        56,
        "u8 x s8 with two zero points",
        lambda a, b: (a.to(i32) - 42) @ (b.to(i32) + 26),
        (LEFT, RIGHT),
        (t([[12100, 1951, 40214], [11745, 2293, 41351], [18030, -10919, 36548]], i32),),
        0,
        ("MK", "KN"),
    ),
    Row(
        62,
        "bytes wrap before they are widened",
        lambda x, y, z: ((x + x).to(i16), (y + 1).to(i32), (z - 5).to(i64)),
        (t([128], u8), t([127], i8), t([3], u8)),
        (t([0], i16), t([-128], i32), t([254], i64)),
        0,
        ("N", "N", "N"),
    ),
]
