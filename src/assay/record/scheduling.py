"""How a parallel run hands out tests: those of an op together, on whichever worker is free."""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

CASES = ("ops/", "e2e/")  # folders whose tests are parametrised by case


class CaseScheduling(LoadScopeScheduling):
    """One unit of work per op or layer, so that its program is captured once for all targets.

    Other tests form one unit per file, so that what they share is made once.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, inside = nodeid.partition("[")
        case = inside.partition("-")[0] if path.startswith(CASES) else ""
        return case or path.split("::")[0]

    def remove_node(self, node: Any) -> str | None:
        """A test that killed its worker counts as done: run again it might pass, and the crash would be forgotten."""
        workload = self.assigned_work.pop(node)
        pending = [(unit, nodeid) for unit in workload.values() for nodeid, done in unit.items() if not done]
        if not pending:
            return None
        unit, crashed = pending[0]
        unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Wait for a replacement's collection: while one is under way, another crash asks to give it work too early."""
        if node in self.registered_collections:
            super()._reschedule(node)
