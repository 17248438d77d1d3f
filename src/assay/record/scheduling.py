"""How a parallel run hands out tests: a case's tests together, on whichever worker is free."""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]


class CaseScheduling(LoadScopeScheduling):
    """One unit of work per case id; tests without a case form one unit per file."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, inside = nodeid.partition("[")
        return inside.removesuffix("]") or path.split("::")[0]

    def _reschedule(self, node: Any) -> None:
        """Wait for a replacement's collection: while one is under way, another crash asks to give it work too early."""
        if node in self.registered_collections:
            super()._reschedule(node)
