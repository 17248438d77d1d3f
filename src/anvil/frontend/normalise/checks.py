"""Drop run-time checks that the exporter inserted: they compute nothing."""

from __future__ import annotations

import torch

from anvil.graph.program import GraphProgram
from anvil.graph.rewrite import GraphPass, calls

aten = torch.ops.aten

CHECKS = (
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten._assert_async.default,
    aten._assert_async.msg,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)


def _drop_checks(program: GraphProgram) -> None:
    dropped = 0
    for node in calls(program.module.graph, *CHECKS):
        program.module.graph.erase_node(node)
        dropped += 1
    if dropped:
        program.notes.append(f"drop_checks: {dropped} run-time checks removed")


DROP_CHECKS = GraphPass("drop_checks", _drop_checks)
