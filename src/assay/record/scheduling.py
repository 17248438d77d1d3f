"""How a parallel run hands out tests: those of an op together, on whichever worker is free."""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]


class CaseScheduling(LoadScopeScheduling):
    """One unit of work per op or layer, so that its program is captured once for all targets.

    Tests without a case form one unit per file.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, inside = nodeid.partition("[")
        return inside.partition("-")[0] or path.split("::")[0]

    def _reschedule(self, node: Any) -> None:
        """Wait for a replacement's collection: while one is under way, another crash asks to give it work too early."""
        if node in self.registered_collections:
            super()._reschedule(node)
