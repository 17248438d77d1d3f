"""The judge of one overload on one target: all its types in one program, each with a verdict of its own."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay import compare, formats
from assay.backends.protocol import Compiled, Finding, NotRunHere, Unsupported
from assay.bench import Bench, native
from assay.compare import Mismatch, Verdict
from assay.explore import Profile
from assay.overloads import refusals
from assay.overloads.examples import Example, examples
from assay.overloads.program import Call, program
from assay.overloads.question import Question, question
from assay.overloads.spec import Form, Overload
from assay.record.rows import CaseKey

KIND = "overload"
NATIVE_LIMIT, EMULATED_LIMIT = 1200, 400
EXAMPLES = 14


@dataclass
class Cell:
    """What was seen of one element type."""

    status: str = "ok"
    reason: str = ""
    examples: int = 0
    headroom: float = 0.0
    ulps: float = 0.0
    artifact: str = ""

    def note(self, verdict: Verdict) -> None:
        self.headroom = max(self.headroom, verdict.headroom)
        if verdict.kind == "bound":
            self.ulps = max(self.ulps, verdict.ulps)

    def end(self, status: str, reason: str) -> None:
        if self.status == "ok":
            self.status, self.reason = status, reason


@dataclass
class OverloadCheck:
    """One overload under one test. ``cells`` has what came of each type after :meth:`run`."""

    bench: Bench
    overload: Overload
    target: str
    profile: Profile
    folder: Path
    seed: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)

    def run(self) -> None:
        """Compile and run every call. Raises ``Mismatch`` with the reports of all types that failed, ``Unsupported``
        or ``NotRunHere`` if no type came to a result."""
        calls = self.calls()
        self.cells = {call.dtype: Cell() for call in calls}
        status = self.bench.statuses[self.target]
        if not status.runs:
            for cell in self.cells.values():
                cell.end("not_run", status.reason or f"{status.name} does not run on this machine")
            raise NotRunHere(status.reason)
        self._each(calls)
        if self.profile.name != "quick" and self.target == self.bench.reference:  # no target makes a difference
            for reason in refusals.bad_types(self.overload, self._compile):
                self._failed(calls[0], f"a type that PyTorch refuses: {reason}")
            for reason in refusals.bad_ranks(self.overload, self._compile):
                self._failed(calls[0], f"a rank that PyTorch refuses: {reason}")
        self._raise()

    def calls(self) -> list[Call]:
        """The first form in every type; each other one in f32 or the first type, and in one more, in turn.

        Raises ``Finding`` if there is no type: a spec that checks nothing must not pass.
        """
        overload = self.overload
        turn = zlib.crc32(overload.name.encode())
        types = list(overload.types)
        if not types:
            raise Finding(
                f"PyTorch computes {overload.forms[0].title!r} of {overload.name} in no type: nothing to check"
            )
        if self.profile.name == "quick":
            types = [types[turn % len(types)]]  # in turn over the overloads
        found = [Call(overload.forms[0], name) for name in types]
        forms = list(overload.all_forms[1:])
        if self.profile.name == "quick":
            # Views are one mechanism for all overloads: one in four is looked at through one.
            looks = [form for form in forms if form.look]
            kept = looks[turn // 4 % 2 : turn // 4 % 2 + 1] if turn % 4 == 0 else []
            forms = [form for form in forms if not form.look or form in kept]
        for number, form in enumerate(forms):
            accepted = [name for name in types if overload.accepts(name, form)]
            if not self.profile.random and not form.everywhere:
                accepted = [accepted[(turn + number) % len(accepted)]] if accepted else []
            found += [Call(form, name) for name in accepted]
        return found

    def _each(self, calls: Sequence[Call]) -> None:
        """All calls as one program; if that cannot be compiled or crashes, each type as its own."""
        try:
            self._judge(self._compile(calls), calls)
        except (Unsupported, NotRunHere, Finding) as error:
            types = list(dict.fromkeys(call.dtype for call in calls))
            if len(calls) == 1:
                self._give_up(calls[0], error)
            elif len(types) == 1:
                for call in calls:
                    self._each([call])
            else:
                for name in types:
                    self._each([call for call in calls if call.dtype == name])

    def _compile(self, calls: Sequence[Call]) -> Compiled:
        """Raises ``Unsupported``, ``NotRunHere``, or ``Finding`` for anything else that goes wrong."""
        asked = program(self.folder, self.overload, calls)
        try:
            return self.bench.backend.compile(asked, self.target)
        except (Unsupported, NotRunHere):
            raise
        except Exception as error:
            raise Finding(f"compiling: {type(error).__name__}: {error}") from error

    def _give_up(self, call: Call, error: Exception) -> None:
        title = "" if call.form is self.overload.forms[0] else f"{call.form.title}: "
        if isinstance(error, (Unsupported, NotRunHere)):
            self.cells[call.dtype].end(_status(error), f"{title}{error}")
        else:
            self._failed(call, f"{title}{error}")

    def _failed(self, call: Call, reason: str) -> None:
        self.cells[call.dtype].end("failed", f"{self._name(call)}: {reason}\n  replay   {self._replay()}")

    def _judge(self, compiled: Compiled, calls: Sequence[Call]) -> None:
        limit = NATIVE_LIMIT if native(self.bench.statuses[self.target]) else EMULATED_LIMIT
        base = self.seed if self.profile.random else 0
        for example in examples(self.overload, self.profile.count(EXAMPLES), limit, base):
            asked = [question(self.overload, call, example) for call in calls]
            got = compiled.run(*(tensor for own in asked for tensor in own.stored), threads=example.threads)
            left = iter(got)
            for call, own in zip(calls, asked, strict=True):
                self.cells[call.dtype].artifact = compiled.artifact
                self._compare(call, example, own, [next(left) for _ in own.eager])
        first = next(examples(self.overload, 1, limit, base))
        for reason in refusals.bad_values(self.overload, compiled, calls, first):
            self._failed(calls[0], reason)
        if self.target == self.bench.reference:  # sizes are refused before a kernel runs: no target makes a difference
            for reason in refusals.bad_sizes(self.overload, compiled, calls, first):
                self._failed(calls[0], reason)

    def _compare(self, call: Call, example: Example, asked: Question, got: list[torch.Tensor]) -> None:
        """Judge one call's results; the first failure of a type is kept, what follows is not judged any more."""
        cell = self.cells[call.dtype]
        if cell.status != "ok":
            return
        cell.examples += call.form is self.overload.forms[0]
        with np.errstate(all="ignore"):
            for position, mine in enumerate(got):
                verdict = self._verdict(mine, asked, position)
                cell.note(verdict)
                if not verdict.passed:
                    yard = self._verdict(asked.eager[position], asked, position)
                    cell.end("failed", self._report(call, example, verdict, yard, position if len(got) > 1 else None))
                    return

    def _verdict(self, got: torch.Tensor, asked: Question, position: int) -> Verdict:
        expected, want = asked.eager[position], asked.wants[position]
        if got.dtype != expected.dtype:
            what = f"type {got.dtype}, want {expected.dtype}"
            return Verdict(np.inf, np.ones(1, bool), (), np.inf, 0.0, np.inf, np.nan, np.nan, what)
        fmt = formats.of(expected.dtype)
        signs = self.overload.signed_zero and fmt.is_float
        return compare.compare(_array(got), want, asked.allowed[position], fmt, signed_zero=signs)

    def _report(self, call: Call, example: Example, verdict: Verdict, yard: Verdict, which: int | None) -> str:
        what = "outside its bound" if verdict.kind == "bound" else f"wrong {verdict.kind}"
        result = "" if which is None else f" of result {which}"
        place = f"at {list(verdict.worst)}: got {verdict.got:.17g} want {verdict.want:.17g}"
        allowed = f"{verdict.ulps:.3g} ulp, allowed {_ulps(verdict):.3g} ({source(self.overload.bound)}) "
        lines = [
            f"{self._name(call)}: {what}{result}",
            f"  worst    {allowed if verdict.kind == 'bound' else ''}{place}",
            f"  spread   {compare.spread(verdict.wrong, [f'dim {i}' for i in range(verdict.wrong.ndim)])}",
            f"  eager    PyTorch on the same input: {yard.ulps:.3g} ulp, error/bound {yard.headroom:.3g}",
            f"  call     {call.form.title}: {_call(call.form)}",
            f"  input    {example}",
            f"  replay   {self._replay()}",
        ]
        return "\n".join(lines)

    def _name(self, call: Call) -> str:
        return f"{self.overload.name}-{call.dtype}-{self.target.replace('-', '_')}"

    def _replay(self) -> str:
        node = f"ops/test_overloads.py::test_overload[{self.overload.name}-{self.target.replace('-', '_')}]"
        return f"pytest '{node}' --profile {self.profile.name} --seed {self.seed:#x}"

    def _raise(self) -> None:
        by_status: dict[str, list[str]] = {}
        for cell in self.cells.values():
            by_status.setdefault(cell.status, []).append(cell.reason)
        if "failed" in by_status:
            raise Mismatch("\n".join(by_status["failed"]))
        if "ok" in by_status:
            return
        for kind in (Unsupported, NotRunHere):
            for reason in by_status.get(_status(kind()), [])[:1]:
                raise kind(reason)

    def facts(self, status: str, reason: str) -> list[dict[str, Any]]:
        """One row's facts per element type; types that came to no verdict have ``status`` and ``reason``."""
        executor = self.bench.statuses[self.target].executor
        found = []
        for name, cell in self.cells.items():
            stopped = cell.status == "ok" and not cell.examples
            key = CaseKey(
                f"{self.overload.name}-{name}-{self.target.replace('-', '_')}",
                KIND,
                self.overload.name,
                self.target,
                name,
            )
            found.append(
                {
                    "case": asdict(key),
                    "status": status if stopped else cell.status,
                    "reason": reason if stopped else cell.reason,
                    "executor": executor,
                    "artifact": cell.artifact,
                    "examples": cell.examples,
                    "headroom": float(cell.headroom) if cell.examples else None,
                    "ulps": float(cell.ulps) if cell.examples else None,
                }
            )
        return found


def _status(error: Unsupported | NotRunHere) -> str:
    return "unsupported" if isinstance(error, Unsupported) else "not_run"


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64).numpy()


def _ulps(verdict: Verdict) -> float:
    ulp = verdict.error / verdict.ulps if verdict.ulps else 0.0
    return verdict.allowed / ulp if ulp else 0.0


def _call(form: Form) -> str:
    tensors = [f"[{given.axes.replace(' ', ', ')}]{given.dtype and ' ' + given.dtype}" for given in form.tensors]
    constants = [*map(repr, form.args), *(f"{name}={value!r}" for name, value in form.kwargs.items())]
    return ", ".join([*tensors, *constants])


def source(bound: Any) -> str:
    """File and line of a bound."""
    path = Path(inspect.getsourcefile(bound) or "?")
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    return f"{path}:{inspect.getsourcelines(bound)[1]}"
