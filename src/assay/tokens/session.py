"""One generation as a user sees it: text as it comes, then the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from assay.backends.protocol import LanguageModel
from assay.errors import UsageError
from assay.measure.ceiling import Ceiling, TruthError, check_truth, last_level_cache
from assay.measure.resident import Held
from assay.measure.timing import Timing, peak_rss_bytes
from assay.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Generation:
    """Generated ids (a stop token ends them and is included), their text, and when they came."""

    tokens: tuple[int, ...]
    text: str
    timing: Timing


@dataclass(frozen=True)
class Speed:
    """Decode speed beside its ceiling. ``share`` is None where the weights fit in cache, which no ceiling bounds, and
    where ``doubt`` says why the two do not fit together."""

    weight_bytes: int
    achieved_gb_s: float | None
    ceiling: Ceiling
    share: float | None
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "weight_bytes": self.weight_bytes,
            "achieved_gb_s": self.achieved_gb_s,
            "ceiling_gb_s": self.ceiling.read_gb_s,
            "ceiling_share": self.share,
            "ceiling_gflop_s": self.ceiling.fma_gflop_s,
            "doubt": self.doubt,
        }


def check_fits(prompt_tokens: int, new_tokens: int, context: int, window: int = 0) -> None:
    """Raise :class:`UsageError` for an empty prompt, and for one that does not fit with its answer.

    With a ``window`` the answer may be of any length, and the prompt alone must fit.
    """
    if not prompt_tokens:
        raise UsageError("generating: the prompt is empty; expected at least one token")
    if not 0 <= window < context:
        raise UsageError(f"generating: window={window}, expected 1 to {context - 1}, or 0 for none")
    if window and prompt_tokens > context:
        raise UsageError(
            f"generating: prompt of {prompt_tokens} tokens, expected at most context={context}; shorten it"
        )
    if not window and prompt_tokens + new_tokens > context:
        raise UsageError(
            f"generating: prompt of {prompt_tokens} tokens + max_new_tokens={new_tokens} is more than "
            f"context={context}; shorten the prompt, ask for fewer tokens, or go on with a --window of the last ones"
        )


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    new_tokens: int,
    show: Callable[[str], None] = lambda _: None,
    sampling: Mapping[str, float] = MappingProxyType({}),
    window: int = 0,
) -> Generation:
    """Generation from a fresh cache until a stop token or ``new_tokens``; ``show`` gets the text as it comes.

    Raises what :func:`check_fits` raises.
    """
    check_fits(len(ids), new_tokens, model.context, window)
    step, arrivals = tokenizer.stream(), []

    def arrived(_row: int, token: int) -> None:
        arrivals.append(time.perf_counter())
        if token not in tokenizer.stop:
            show(step(token))

    start = time.perf_counter()
    (tokens,) = model.answers([ids], new_tokens, sampling, tokenizer.stop, arrived, window=window)
    return Generation(tuple(tokens), tokenizer.decode(tokens), Timing.of(len(ids), start, arrivals))


def generate_each(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampling: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    """Texts of the answers to several prompts, generated side by side; each is what it would be alone."""
    for ids in prompts:
        check_fits(len(ids), new_tokens, model.context)
    return [tokenizer.decode(ids) for ids in model.answers(prompts, new_tokens, sampling, tokenizer.stop, _silent)]


def _silent(_row: int, _token: int) -> None:
    """Nobody watches."""


def numbers(generation: Generation, held: Held) -> dict[str, Any]:
    """Times and memory of a generation, for JSON. ``held`` is taken before the ceiling is measured, which needs memory
    itself."""
    return {
        "prompt_tokens": generation.timing.prompt_tokens,
        **generation.timing.to_dict(),
        **held.to_dict(),
        "peak_rss_bytes": peak_rss_bytes(),
    }


def speed_of(timing: Timing, weight_bytes: int, top: Ceiling) -> Speed:
    """The decode speed beside the ceiling that was measured with it; a speed above that is put in doubt."""
    if not timing.itl_ms:
        return Speed(weight_bytes, None, top, None)
    achieved = timing.read_gb_s(weight_bytes)
    if weight_bytes < 4 * last_level_cache():
        return Speed(weight_bytes, achieved, top, None)
    try:
        check_truth("decode", achieved, top.read_gb_s)
    except TruthError as error:
        return Speed(weight_bytes, achieved, top, None, str(error))
    return Speed(weight_bytes, achieved, top, achieved / top.read_gb_s)
