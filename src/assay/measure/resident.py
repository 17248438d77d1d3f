"""Resident memory of this process beside what a model plans to hold."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.measure.timing import peak_rss_bytes

MARGIN = 0.03  # of what is planned: page tables' rounding, tables of the runtime, and Python objects
_PROCESS = Path("/proc/self")
PARTS = ("weight_bytes", "kv_bytes", "arena_bytes")


@dataclass(frozen=True)
class Held:
    """Bytes that a model plans to hold, by part, and the most that were resident beside what was there before."""

    weight_bytes: int
    kv_bytes: int
    arena_bytes: int
    resident_bytes: int

    @classmethod
    def of(cls, facts: Mapping[str, Any], resident_bytes: int) -> Held:
        """Of a model that says so much of itself."""
        weights, cache, arena = (int(facts.get(name, 0)) for name in PARTS)
        return cls(weights, cache, arena, resident_bytes)

    @property
    def planned_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.arena_bytes

    @property
    def fault(self) -> str:
        """What is wrong, in a sentence; empty when no more is resident than planned."""
        if self.resident_bytes <= (1 + MARGIN) * self.planned_bytes:
            return ""
        return f"{self.resident_bytes / 1e9:.2f} GB resident, {1 + MARGIN:.2f} × the planned {self} allowed"

    def __str__(self) -> str:
        return (
            f"{self.planned_bytes / 1e9:.2f} GB (weights {self.weight_bytes / 1e9:.2f}, keys and values "
            f"{self.kv_bytes / 1e9:.2f}, temporaries {self.arena_bytes / 1e9:.2f})"
        )

    def to_dict(self) -> dict[str, int]:
        held = {name: getattr(self, name) for name in PARTS}
        return held | {"planned_bytes": self.planned_bytes, "model_rss_bytes": self.resident_bytes}


class Watch:
    """From its making on, the most memory resident in this process beside what was then.

    The kernel's own mark of the peak is reset where it can be; where it cannot, a higher peak of before hides a part.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")
        self._before = peak_bytes()

    def held(self, facts: Mapping[str, Any]) -> Held:
        """Now, of a model with these facts."""
        return Held.of(facts, peak_bytes() - self._before)


def peak_bytes() -> int:
    """The most memory this program held resident since the mark was reset, in bytes.

    What ``getrusage`` says also counts the program that started this one.
    """
    status = _PROCESS / "status"
    lines = status.read_text().splitlines() if status.is_file() else []
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    return int(peak.split()[1]) * 1024 if peak else peak_rss_bytes()
