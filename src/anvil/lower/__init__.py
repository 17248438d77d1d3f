"""From the fused graph to a plan: rows of kernel calls over views of buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import torch

from anvil.errors import InputError
from anvil.frontend.fuse.other_types_attention import WRITE_OUT_ATTENTION
from anvil.graph.program import GraphProgram
from anvil.lower.decompose import WRITE_OUT
from anvil.lower.lowering import Lowering
from anvil.runtime.plan import Plan
from anvil.targets.base import Target

__all__ = ["lower", "write_out"]

Phase = Literal["prefill", "decode"]


def lower(
    program: GraphProgram,
    target: Target,
    *,
    quant: str = "fp32",
    attention: str = "flash",
    phase: Phase = "prefill",
    fixed: Mapping[str, int] | None = None,
    trusted: Collection[str] = (),
) -> Plan:
    """The plan that computes ``program`` on ``target``.

    ``fixed`` specialises symbolic sizes to numbers; the plan then holds for those only. ``phase="decode"`` fixes the
    number of tokens, the size of dimension 2 of the queries over a cache, to 1. The rule for attention: a causal
    query that is alone (its size is the number 1) runs the ``decode`` kernel unless the variant ``attention`` claims
    that phase, all others that variant.

    Index tensors are checked at every run, but for the inputs named in ``trusted``: the caller checks those.

    Raises :class:`UnsupportedError` naming the op, its arguments and the Python line for what has no lowering, and
    :class:`InputError` for an unknown mode or variant, or ``phase="decode"`` of a program without a cache.
    """
    sizes = dict(fixed or {})
    if phase == "decode":
        sizes[_token_symbol(program)] = 1
    return Lowering(write_out(program), target, quant, attention, sizes, trusted).run()


def write_out(program: GraphProgram) -> GraphProgram:
    """The program in ops that have a lowering, for every target; one that is written out already as it is."""
    return program if program.stage == WRITE_OUT.name else WRITE_OUT(WRITE_OUT_ATTENTION(program))


def _token_symbol(program: GraphProgram) -> str:
    """The name of the size that counts the tokens of one call."""
    for node in program.module.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.anvil.attention_cached.default:
            tokens = node.args[0].meta["val"].shape[2]
            if isinstance(tokens, torch.SymInt) and tokens.node.expr.is_Symbol:
                return tokens.node.expr.name
    raise InputError(
        f"lowering {program.name!r} for phase='decode': no attention over a cache with a symbolic number of tokens; "
        "make the program incremental first, or use phase='prefill'"
    )
