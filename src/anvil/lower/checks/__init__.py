"""What makes a run end with an error instead of a number: indices that do not exist, divisions of integers by zero, and
sizes for which an op has no result. Kernels never read or write elsewhere and never trap; rows beside them note it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import Node

from anvil.lower.checks.divisors import emit_divisor_checks
from anvil.lower.checks.indices import emit_index_checks
from anvil.lower.checks.sizes import require_sizes

if TYPE_CHECKING:
    from anvil.lower.lowering import Lowering


def emit_checks(low: Lowering, node: Node) -> None:
    """Everything that has to be checked of ``node``."""
    if node.op == "call_function":
        emit_index_checks(low, node)
        emit_divisor_checks(low, node)
        require_sizes(low, node)
