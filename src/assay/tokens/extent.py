"""How much of a model's golden one test looks at: on emulated targets, and in the quick profile, less than the whole.

What is left out is left out by number (prompts, tokens, positions), never by loosening a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.backends.protocol import TargetStatus
from assay.bench import native
from assay.tokens.spec import ModelSpec


@dataclass(frozen=True)
class Extent:
    """``prompts`` of a golden, leading or ``shortest`` ones, of each ``new_tokens`` greedy ones; leading ``corpus``
    positions of the fixed text; leading ``positions`` of a prompt along the residual stream. None: all there are; 0:
    that is not looked at."""

    prompts: int | None = None
    new_tokens: int | None = None
    corpus: int | None = None
    positions: int | None = None
    shortest: bool = False


WHOLE = Extent()
SAMPLE = Extent(prompts=2, corpus=256, positions=16)
GLANCE = Extent(prompts=1, corpus=0, positions=0)
SLOWLY = Extent(prompts=1, new_tokens=8, corpus=0, positions=0, shortest=True)
NOTHING = Extent(prompts=0, corpus=0, positions=0)


def extent(
    spec: ModelSpec, status: TargetStatus, *, whole: bool, widest: bool, thorough: bool = False, quant: str = "fp32"
) -> Extent:
    """What a test of ``spec`` looks at on one target.

    Emulated: two prompts, as far as the model says; of a large model its shortest prompt in a ``thorough`` run, in
    fp32, else nothing. Natively all of it, of a large model only where the ``whole`` was asked for: else a sample on
    the target with the ``widest`` vectors, and a glance at the others, whose results are the same to the bit wherever
    ops and layers are right.
    """
    if not native(status) and not spec.emulated_tokens:
        return SLOWLY if thorough and quant == "fp32" else NOTHING
    if not native(status):
        return Extent(prompts=2, new_tokens=spec.emulated_tokens, corpus=0, positions=16)
    if whole or spec.emulated_tokens:
        return WHOLE
    return SAMPLE if widest else GLANCE
