"""One call on one example, and the right answer: the same on every target, so it is made once for all of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from assay import bounds, formats
from assay.bounds import Setting
from assay.overloads import golden
from assay.overloads.examples import Example, arguments, tensors
from assay.overloads.program import Call
from assay.overloads.spec import Overload

#: Calls on examples that are remembered: those of one overload in the ci profile, which asks them target by target.
_REMEMBERED = 2048


@dataclass(frozen=True)
class Question:
    """``stored``: what the compiled program is handed. Per result: ``eager``, PyTorch's own, for its shape and type;
    ``wants``, the golden; ``allowed``, the absolute error per element."""

    stored: tuple[torch.Tensor, ...]
    eager: tuple[torch.Tensor, ...]
    wants: tuple[np.ndarray, ...]
    allowed: tuple[np.ndarray, ...]


@functools.lru_cache(maxsize=_REMEMBERED)
def question(overload: Overload, call: Call, example: Example) -> Question:
    """The question of one call on one example. Nobody may write into what it holds."""
    stored = tensors(overload, call, example)
    given = arguments(call, stored)
    eager = golden.eager(overload, call.form, given)
    with np.errstate(all="ignore"):
        arrays = golden.operands(overload, call.form, given)
        numbers = golden.constants(overload, call.form, given)
        wants = golden.results(overload, call.form, arrays, numbers)
        operands = (*arrays, *numbers)
        allowed = tuple(
            _allowed(overload, call, want, result, operands, position)
            for position, (want, result) in enumerate(zip(wants, eager, strict=True))
        )
    return Question(tuple(stored), eager, wants, allowed)


def _allowed(
    overload: Overload, call: Call, want: np.ndarray, eager: torch.Tensor, operands: Sequence[Any], position: int
) -> np.ndarray:
    fmt = formats.of(eager.dtype)
    if not fmt.is_float or overload.bound is bounds.exact:
        return np.zeros(want.shape)
    allowed = overload.bound(Setting(fmt, formats.accumulator(fmt)), want, *operands, **call.form.kwargs)
    return allowed[position] if isinstance(allowed, tuple) else allowed
