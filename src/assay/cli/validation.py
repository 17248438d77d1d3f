"""The steps of a validation, each leaving its rows in the record folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from assay.backends.protocol import Backend, LanguageModel, TargetStatus
from assay.cli import common, subtests
from assay.errors import UsageError
from assay.measure import ceiling, model_speed
from assay.measure.timing import peak_rss_bytes
from assay.record import CaseKey, Note, Result, Row, Writer, provenance
from assay.record.writer import read
from assay.tokens import session
from assay.tokens.check import ModelCheck
from assay.tokens.reference import Reference
from assay.tokens.registry import project_root
from assay.tokens.spec import ModelSpec
from assay.tokens.stage import TokenStage

PROFILES = {"demo": "quick", "quick": "quick", "ci": "ci", "deep": "deep"}  # a validation's -> the test suite's
GENERATIONS = 3
TIMED_SHARE = 0.15  # of the whole job, for the progress bar

Progress = Callable[[float, str], None]


@dataclass
class Validation:
    """One model, checked on ``targets`` (all when empty) with ``backend``; rows go to ``records``."""

    spec: ModelSpec
    backend: Backend
    quant: str
    profile: str
    targets: tuple[str, ...]
    threads: int
    workers: int
    records: Path
    weights: str | None = None
    executed: tuple[str, ...] = ()  # ops the model runs, known once it is compiled; empty: all
    _before: frozenset[Path] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Find every fault of the request before any long work starts."""
        if self.profile not in PROFILES:
            raise UsageError(f"unknown profile={self.profile!r}; known: {', '.join(PROFILES)}")
        for name in self.targets:
            common.target(self.backend, name)
        self.native: TargetStatus = common.target(self.backend, "")
        self.stage = TokenStage(self.spec, self.quant, self.weights)
        self._before = frozenset(self.records.glob("*.jsonl"))
        command = shlex.join(["assay", *sys.argv[1:]])
        self.run = provenance.run(seed=0, command=command, backend=self.backend.name, profile=self.profile)
        self.writer = Writer(self.records / f"{self.run.run}.jsonl")
        self.writer.write(self.run)

    def measure(self, progress: Progress) -> session.Generation:
        """Compile, ask the first prompt, and time it while nothing else runs; recorded as the check ``timing``."""
        progress(0.0, f"compiling {self.spec.name} for {self.native.name}")
        model = self.stage.load(self.backend, self.native.name, self.threads)
        facts = dict(model.facts())
        self.executed = tuple(facts.get("ops", ()))
        progress(0.5, "generating, and measuring the ceiling before, between and after")
        self._ask(model)
        peak = peak_rss_bytes()  # before the probes take memory of their own
        with ceiling.Probes(self.threads, facts["weight_bytes"]) as probes:
            runs = list[session.Generation]()
            for _ in range(GENERATIONS):
                probes.measure(repeats=2)
                runs.append(self._ask(model))
            top = probes.measure().ceiling()
        middle = sorted(runs, key=lambda run: run.timing.tpot_ms)[GENERATIONS // 2]
        progress(0.7, "prefill beside PyTorch eager")
        prefill = model_speed.compare_prefill(model, Reference.eager(self.stage.path), self.threads)
        speed = session.speed_of(middle.timing, facts["weight_bytes"], top)
        status, metrics = "ok", model_speed.metrics(middle, speed, prefill, peak)
        if speed.doubt:
            status, metrics = "failed", []
        key = CaseKey(self._case_id(), "model", self.spec.name, self.native.name, quant=self.quant)
        rows: list[Row] = [
            Result(key, "timing", status, speed.doubt, "in-process", metrics=tuple(metrics), run=self.run.run),
            Note(key, "generation", {"prompt": self.spec.prompts[0].text, "text": middle.text}, self.run.run),
            Note(key, "facts", facts, self.run.run),
        ]
        for row in rows:
            self.writer.write(row)
        return middle

    def check(self, progress: Progress) -> subtests.Finished:
        """Ops, layers and the model on every target, by the test suite in processes of its own.

        Raises :class:`RecordError` when the suite could not record.
        """
        arguments = ["ops", "e2e", "-n", str(self.workers), "--record", str(self.records), "-k", self._expression()]
        arguments += ["--profile", PROFILES[self.profile], "--backend", self.backend.name, "--quant", self.quant]
        arguments += [part for name in self.targets for part in ("--target", name)]
        what = "checking ops, layers and tokens on every target"
        return subtests.run(project_root(), arguments, lambda share: progress(share, what))

    def rows(self) -> list[Row]:
        """Everything recorded since this validation began."""
        return list(read(*sorted(set(self.records.glob("*.jsonl")) - self._before)))

    def _ask(self, model: LanguageModel) -> session.Generation:
        ids = self.stage.golden.prompts[0].prompt_ids
        return session.generate(model, self.stage.tokenizer, ids, self.spec.new_tokens)

    def _expression(self) -> str:
        """For pytest's -k: every layer and this model, and the ops that the model executes, in all their forms."""
        if not self.executed:
            return f"test_ops or test_layers or {self._name}"
        return " or ".join(("test_layers", self._name, *(f"[{op}" for op in self.executed)))

    @property
    def _name(self) -> str:
        return self.spec.name.replace("-", "_")

    def _case_id(self) -> str:
        return ModelCheck(self.spec, self.native, self.backend.name, self.quant).id
