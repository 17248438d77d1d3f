"""The pipeline from a captured program to one made of named operations, as data.

After every stage the program still runs in PyTorch and computes what the captured one computes.
"""

from __future__ import annotations

from collections.abc import Iterator

from anvil.frontend.fuse.attention import FUSE_ATTENTION
from anvil.frontend.fuse.experts import FUSE_EXPERTS
from anvil.frontend.fuse.linear import FUSE_LINEAR
from anvil.frontend.fuse.repeat_kv import FOLD_REPEAT_KV
from anvil.frontend.fuse.rms_norm import FUSE_RMS_NORM
from anvil.frontend.fuse.rope import FUSE_ROPE
from anvil.frontend.fuse.swiglu import FUSE_SWIGLU
from anvil.frontend.fuse.written_out_attention import FUSE_WRITTEN_OUT_ATTENTION
from anvil.frontend.normalise.checks import DROP_CHECKS
from anvil.frontend.normalise.constants import FOLD_CONSTANTS
from anvil.frontend.normalise.noops import DROP_NOOPS
from anvil.frontend.normalise.scatter import JOIN_SCATTERS
from anvil.frontend.normalise.sharing import DROP_UNUSED, SHARE
from anvil.frontend.normalise.sizes import CANONICAL_SIZES
from anvil.frontend.normalise.spelling import CANONICAL_SPELLING
from anvil.frontend.normalise.views import CANONICAL_VIEWS
from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass

NORMALISE: tuple[GraphPass, ...] = (
    DROP_CHECKS,
    CANONICAL_SIZES,
    CANONICAL_VIEWS,
    CANONICAL_SPELLING,
    FOLD_CONSTANTS,
    JOIN_SCATTERS,
    DROP_NOOPS,
    SHARE,
)


def _tidy(program: GraphProgram) -> None:
    """Views and copies that fusion left behind."""
    DROP_NOOPS.edit(program)
    SHARE.edit(program)


FUSE: tuple[GraphPass, ...] = (
    FUSE_LINEAR,
    FUSE_RMS_NORM,
    FUSE_ROPE,
    FUSE_ATTENTION,
    FUSE_WRITTEN_OUT_ATTENTION,
    FOLD_REPEAT_KV,
    FUSE_SWIGLU,
    FUSE_EXPERTS,
    GraphPass("tidy", _tidy),
    DROP_UNUSED,
)

STAGES: tuple[tuple[str, GraphPass], ...] = tuple((stage.name, stage) for stage in (*NORMALISE, *FUSE))


def each_stage(program: GraphProgram) -> Iterator[GraphProgram]:
    """The captured program, then the program after each of ``STAGES``."""
    yield program
    for _, stage in STAGES:
        program = stage(program)
        yield program


def fuse(program: GraphProgram) -> GraphProgram:
    """The captured program after all of ``STAGES``."""
    *_, last = each_stage(program)
    return last
