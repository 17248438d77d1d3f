"""A machine of known speed, for tests of what is said about a speed: nothing is measured."""

from __future__ import annotations

import pytest

from assay.measure import ceiling


def known_ceiling(monkeypatch: pytest.MonkeyPatch, read_gb_s: float) -> None:
    """From now on every measured ceiling is this one."""

    class Known(ceiling.Probes):
        def __init__(self, threads: int, nbytes: int | None = None) -> None:
            self._known = ceiling.Ceiling(threads, read_gb_s, fma_gflop_s=100.0, nbytes=nbytes or 0)

        def __exit__(self, *_: object) -> None: ...

        def measure(self, repeats: int = ceiling.REPEATS) -> Known:
            return self

        def ceiling(self) -> ceiling.Ceiling:
            return self._known

    monkeypatch.setattr(ceiling, "Probes", Known)
