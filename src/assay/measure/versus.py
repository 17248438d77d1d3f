"""A session of the A/B protocol: base, head, and head once more, each in a process of its own, taking turns.

The second head shows what this machine calls a difference where there is none. Every round runs all three, forwards
and backwards in turn, so that drift falls on all alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from assay.errors import AssayError
from assay.measure import ab
from assay.measure.worker import PROTOCOL, Hello

PHASES = ("prefill", "decode")
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Subject:
    """What is timed on both sides: a model as ``assay generate`` takes it."""

    model: str
    quant: str
    target: str
    threads: int
    backend: str = "anvil"
    weights: str | None = None

    def arguments(self) -> list[str]:
        place = [self.weights] if self.weights else []
        return [self.model, self.quant, self.target, str(self.threads), self.backend, *place]

    def row(self, phase: str) -> str:
        return f"{self.model} {self.quant} {phase}"


@dataclass(frozen=True)
class Batch:
    """Seconds per token of (base, head) and of (head, head again), round by round, by phase."""

    against: dict[str, list[tuple[float, float]]]
    twin: dict[str, list[tuple[float, float]]]


class Worker:
    """A :mod:`assay.measure.worker` running from the checkout ``tree``; a context manager.

    Raises :class:`AssayError` with the end of what it wrote when it cannot start, or dies.
    """

    def __init__(self, tree: Path, subject: Subject) -> None:
        self.tree = tree
        command = [sys.executable, "-m", "assay.measure.worker", *subject.arguments()]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "ASSAY_ROOT": str(tree)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__). Not a pipe: nobody reads along
        self._process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def seconds(self, phase: str) -> float:
        """Seconds per token of one run of ``phase``."""
        assert self._process.stdin is not None
        self._process.stdin.write(phase + "\n")
        return float(self._answer())

    @cached_property
    def hello(self) -> Hello:
        """What it says once it has loaded; waits for that."""
        said = json.loads(self._answer())
        if said.get("protocol") != PROTOCOL:
            raise AssayError(
                f"timing {self.tree}: its worker speaks protocol={said.get('protocol')}, expected {PROTOCOL}; "
                "choose a base that is not so far away"
            )
        return Hello(**said)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-800:]
            raise AssayError(f"timing {self.tree}: its worker ended with code {code}: {said}")
        return line


def run(workers: Sequence[Worker], pairs: int, progress: Progress) -> Batch:
    """``pairs`` rounds over ``workers`` (base, head, head again), after one unmeasured round."""
    for worker in workers:
        for phase in PHASES:
            worker.seconds(phase)
    found = Batch({phase: [] for phase in PHASES}, {phase: [] for phase in PHASES})
    for index in range(pairs):
        turn = range(len(workers)) if index % 2 == 0 else range(len(workers) - 1, -1, -1)
        for phase in PHASES:
            times = {place: workers[place].seconds(phase) for place in turn}
            base, head, twin = (times[place] for place in range(3))
            found.against[phase].append((base, head))
            found.twin[phase].append((head, twin))
        progress((index + 1) / pairs)
    return found


def open_all(stack: ExitStack, base: Path, head: Path, subject: Subject) -> list[Worker]:
    """Base, head, and head again, which load side by side."""
    workers = [stack.enter_context(Worker(tree, subject)) for tree in (base, head, head)]
    for worker in workers:
        _ = worker.hello
    return workers


def judge(batch: Batch, subject: Subject) -> ab.Session:
    """Verdicts of one batch, by row name."""
    rows = {subject.row(phase): ab.compare(samples) for phase, samples in batch.against.items()}
    return ab.judge(rows, [ab.compare(samples) for samples in batch.twin.values()])
