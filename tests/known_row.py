"""A small program whose right result is known: by counting, in exact arithmetic or in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        number: the line.
        title: what it shows.
        program: on tensors; returns one tensor or several.
        inputs: its arguments.
        right: one tensor per result, of the type it must have.
        digits: relative precision of ``right`` as it is known; 0: equal, to the sign of a zero.
        sizes: for each input one letter per dimension that is a run-time size, ``.`` for one that is fixed.
        repeat: a letter of ``sizes``: the same numbers must come out for five copies along it.
        eager: whether PyTorch's own result is right.
    """

    number: int
    title: str
    program: Callable
    inputs: tuple[torch.Tensor, ...]
    right: tuple[torch.Tensor, ...]
    digits: float = 0.0
    sizes: Sequence[str] = ()
    repeat: tuple[str, str] = ("", "")
    eager: bool = True


def t(values: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def wave(*shape: int) -> torch.Tensor:
    """Reproducible numbers of order one."""
    return torch.sin(0.37 * torch.arange(torch.Size(shape).numel()).double()).float().reshape(shape)
