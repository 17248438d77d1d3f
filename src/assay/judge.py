"""The judge of one case: runs examples, compares, keeps count, and raises a readable report on the first fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from assay import agreement, compare, report
from assay.backends.protocol import Finding, NotRunHere, Unsupported
from assay.bench import Bench, Subject
from assay.case import Case, Example, arrays, known_examples, materialise
from assay.compare import Mismatch, Verdict
from assay.exceptions import Allowance
from assay.explore import Profile, Stop, examples, explore, seed_of
from assay.quantised import check_cost
from assay.spec import OpSpec
from assay.strategies.values import INTEGERS, KNOWN, ZERO_MEAN


@dataclass
class Tally:
    """What a check saw: examples run, the worst error/bound and where, the largest error in ulp, rounded results.

    ``notes``: what the record keeps of it beside its numbers, by name.
    """

    examples: int = 0
    headroom: float = 0.0
    ulps: float = 0.0
    last: float = 0.0
    worst: Example | None = None
    rounded: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list[tuple[np.ndarray, np.ndarray]])
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def note(self, example: Example, verdict: Verdict) -> None:
        self.last = verdict.headroom if np.isfinite(verdict.headroom) else 0.0
        if verdict.headroom >= self.headroom:
            self.headroom, self.worst = verdict.headroom, example
        if verdict.kind == "bound":
            self.ulps = max(self.ulps, verdict.ulps)


@dataclass
class Judge:
    """One case under one test.

    ``nodeid`` and ``options`` are the test's path and name and what a command line needs to run it again; ``replayed``
    is the single example to run instead of drawing any; ``stored`` are examples to run before drawn ones.
    ``allowances`` are the exceptions for this check of this case; ``excused`` counts the examples each one covered.
    """

    bench: Bench
    case: Case
    profile: Profile
    nodeid: str
    options: str = ""
    seed: int = 0
    examples: int = 50
    replayed: Example | None = None
    stored: Sequence[Example] = ()
    allowances: Sequence[Allowance] = ()
    excused: dict[Allowance, int] = field(default_factory=dict[Allowance, int])
    tally: Tally = field(default_factory=Tally)

    @property
    def subject(self) -> Subject:
        return self.bench.subject(self.case)

    @property
    def spec(self) -> OpSpec:
        return self.case.spec

    def explore(
        self,
        body: Callable[[Example], None],
        *,
        values: Sequence[str],
        layouts: Sequence[str] = ("contiguous",),
        label: str = "",
    ) -> None:
        """Run ``body`` on the replayed example, or on the stored worst ones and then drawn ones.

        Raises ``Mismatch`` with the report of the smallest failing example, ``Finding`` on a crash, at once.
        """
        edges = self.subject.compiled().edges
        try:
            for example in self.stored if self.replayed is None else (self.replayed,):
                self._once(body, example)
            if self.replayed is None:
                explore(
                    lambda example: self._once(body, example),
                    examples(self.spec, edges, self.subject.limit, values=values, layouts=layouts),
                    count=self.profile.count(self.examples),
                    seed=seed_of(f"{self.nodeid}{label}", self.seed),
                    score=(lambda: self.tally.last) if self.profile.guided else None,
                )
        except Stop as stop:
            raise stop.cause from None
        except Mismatch as mismatch:
            raise self._with_wide(mismatch, body, values) from None

    def _with_wide(self, mismatch: Mismatch, body: Callable[[Example], None], values: Sequence[str]) -> Mismatch:
        """The smallest failure hides where a fault sits: run the largest sizes once, and say where it fails there."""
        if self.replayed is not None:
            return mismatch
        shapes = self.spec.shapes
        dims = {**(shapes.static or ({},))[0]}
        dims |= {name: sizes[-1] for name, sizes in shapes.candidates(self.subject.compiled().edges).items()}
        wide = Example(shapes.shrink_to(dims, self.subject.limit), values[0])
        try:
            self._once(body, wide)
        except (Mismatch, Stop) as other:
            where = other.where if isinstance(other, Mismatch) else str(other).splitlines()[0]
            return Mismatch(f"{mismatch}\n  wide     {wide.suffix(self.spec)}: {where}", mismatch.where)
        return mismatch

    def _once(self, body: Callable[[Example], None], example: Example) -> None:
        self.tally.examples += 1
        try:
            with np.errstate(all="ignore"):
                body(example)
        except Finding as finding:
            raise Stop(Finding(report.text(self.case, example, str(finding), **self._context(example)))) from finding
        except Mismatch:
            if not self._excuse(example):
                raise
        except (Unsupported, NotRunHere):
            raise
        except Exception as error:
            error.add_note(report.text(self.case, example, type(error).__name__, **self._context(example)))
            raise

    def _excuse(self, example: Example) -> bool:
        """Whether an exception covers an example that failed."""
        covering = [allowance for allowance in self.allowances if allowance.values == example.values]
        for allowance in covering:
            self.excused[allowance] = self.excused.get(allowance, 0) + 1
        return bool(covering)

    def require_exceptions_needed(self) -> str:
        """What was excused, for the record. Raises ``Mismatch`` for an exception that no example needed."""
        for allowance in self.allowances if self.replayed is None else ():
            if allowance not in self.excused:
                raise Mismatch(
                    f"{self.case.id}: {allowance}: none of {self.tally.examples} examples needs it; take it out"
                )
        return "; ".join(f"{count} examples excused: {allowance}" for allowance, count in self.excused.items())

    def inputs(self, example: Example) -> list[torch.Tensor]:
        return materialise(self.spec, self.case.format, example)

    def run(
        self, inputs: Sequence[torch.Tensor], example: Example, *, threads: int = 1, plain: bool = False
    ) -> np.ndarray:
        return self.subject.run(inputs, example.dims, threads=threads, plain=plain)

    def within_bound(self, example: Example) -> None:
        """The result is inside its bound on every element; on normal data the aggregate error is at its floor too."""
        inputs = self.inputs(example)
        got = self.run(inputs, example)
        exact = example.values == KNOWN and self.spec.known[example.seed].digits == 0
        verdict = self.verdict(got, inputs, example, exact=exact)
        self.require(verdict, example, inputs)
        allowed = compare.nmse_allowed(self.spec.out or self.case.format)
        if example.values in ZERO_MEAN and got.size >= compare.NMSE_ELEMENTS and verdict.nmse > allowed:
            size = f"NMSE {verdict.nmse:.2e}, allowed {allowed:.2e} (assay/compare.py)"
            raise Mismatch(report.text(self.case, example, "aggregate error", worst=size, **self._context(example)))

    def probe(self) -> None:
        """Run the inputs that are the same on every target, and keep the results for :mod:`assay.agreement`."""
        if self.replayed is not None:
            return
        kept: list[tuple[list[torch.Tensor], np.ndarray]] = []

        def run(example: Example) -> None:
            inputs = self.inputs(example)
            got = self.run(inputs, example)
            self.require(self.verdict(got, inputs, example), example, inputs)
            kept.append((inputs, got))

        try:
            for example in agreement.probes(self.spec):
                self._once(run, example)
        except Stop as stop:
            raise stop.cause from None
        given = (tensor for inputs, _ in kept for tensor in inputs)
        fmt = self.spec.out or self.case.format
        self.tally.notes[agreement.NOTE] = agreement.note(fmt, given, [got for _, got in kept])

    def collect_rounding(self, example: Example) -> None:
        """Keep the result and its golden for :meth:`require_unbiased`."""
        inputs = self.inputs(example)
        got, want = self.run(inputs, example), self.spec.golden(*arrays(inputs))
        self.tally.rounded.append((got.ravel(), want.ravel()))

    def require_unbiased(self) -> None:
        """Over all collected results the mean signed error is that of rounding to nearest. Raises ``Mismatch``."""
        got, want = (np.concatenate(parts) for parts in zip(*self.tally.rounded, strict=True))
        bias, allowed = compare.rounding_bias(got, want, self.case.format)
        if abs(bias) > allowed:
            size = f"mean signed error {bias:.4f} ulp over {got.size} results, allowed ±{allowed:.4f}"
            raise Mismatch(f"{self.case.id}: rounding is biased (truncation is at −½)\n  worst    {size}")

    def exact(self, example: Example) -> None:
        """On operands whose every intermediate is representable the result equals the golden to the bit."""
        example = replace(example, values=INTEGERS)
        inputs = self.inputs(example)
        self.require(self.verdict(self.run(inputs, example), inputs, example, exact=True), example, inputs)

    def require(self, verdict: Verdict, example: Example, inputs: Sequence[torch.Tensor]) -> None:
        """Count a verdict. Raises ``Mismatch`` with the full report if it did not pass."""
        if not verdict.passed:
            if not any(allowance.values == example.values for allowance in self.allowances):
                self.tally.note(example, verdict)  # what is excused is not the worst of what passed
            raise self._mismatch(example, verdict, inputs)
        self.tally.note(example, verdict)

    def known(self, layouts: Sequence[str]) -> None:
        """Every known input of the spec, in these layouts, gives its right value."""
        self.subject.compiled()
        replayed = (self.replayed,) if self.replayed else None
        try:
            for example in replayed or (e for layout in layouts for e in known_examples(self.spec, layout)):
                self._once(self.within_bound, example)
        except Stop as stop:
            raise stop.cause from None

    def across(self, example: Example) -> None:
        """The reference target gives the same bits on the same input."""
        reference = self.bench.subject(replace(self.case, target=self.bench.reference))
        inputs = self.inputs(example)
        here, there = self.run(inputs, example), reference.run(inputs, example.dims)
        self.same(example, f"{self.case.target} and {reference.case.target} differ", here, there)

    def cost(self) -> None:
        """What the case's mode costs is inside its two-sided band."""
        example = self.replayed or Example(self.spec.shapes.complete(self.spec.large))
        try:
            self._once(lambda example: check_cost(self, example), example)
        except Stop as stop:
            raise stop.cause from None

    def report(self, example: Example, what: str, **lines: str) -> str:
        """The text of a fault that is not one element's."""
        return report.text(self.case, example, what, **lines, **self._context(example))

    def verdict(
        self, got: np.ndarray, inputs: Sequence[torch.Tensor], example: Example, *, exact: bool = False
    ) -> Verdict:
        """Compare a result with the golden on these inputs."""
        operands, setting = arrays(list(inputs)), self.subject.setting(example)
        want = self.spec.golden(*operands)
        bound = np.zeros(want.shape) if exact else self.spec.bound(setting, want, *operands)
        return compare.compare(got, want, bound, setting.out, signed_zero=self.spec.signed_zero)

    def same(self, example: Example, what: str, one: np.ndarray, other: np.ndarray, axes: Sequence[str] = ()) -> None:
        """Two results that must agree to the bit. Raises ``Mismatch`` headed by ``what``."""
        if one.shape == other.shape:
            wrong = ~((one == other) & (np.signbit(one) == np.signbit(other)) | np.isnan(one) & np.isnan(other))
            if not wrong.any():
                return
            worst = tuple(int(i) for i in np.argwhere(wrong)[0])
            first = f"first at {list(worst)}: {one[worst]:.9g} and {other[worst]:.9g}"
            where = compare.spread(wrong, axes or self.spec.result.split())
        else:
            first, where = f"shapes {one.shape} and {other.shape}", ""
        text = report.text(self.case, example, what, worst=first, spread=where, **self._context(example))
        raise Mismatch(text, where)

    def require_bits(self) -> None:
        """Raises ``Unsupported`` if the target declares that equal sums may differ in their last bits between calls."""
        if not self.subject.status.facts.get("bit_reproducible", True):
            raise Unsupported(f"{self.case.target} of {self.bench.backend.name} does not promise bit-equal results")

    def _mismatch(self, example: Example, verdict: Verdict, inputs: Sequence[torch.Tensor]) -> Mismatch:
        where = compare.spread(verdict.wrong, self.spec.result.split())
        # PyTorch and the captured graph compute with weights that are not quantised: they are no yardstick in a mode.
        fp32 = self.case.quant == "fp32"
        lines = {"eager": self._eager(inputs, example), "stage": self._stage(inputs, example)} if fp32 else {}
        text = report.mismatch(self.case, example, verdict, spread=where, **lines, **self._context(example))
        return Mismatch(text, where)

    def _context(self, example: Example) -> dict[str, str]:
        return {"input": report.inputs(example), "replay": self._replay(example)}

    def _replay(self, example: Example) -> str:
        return report.replay(self.nodeid, self.case, example, self.options)

    def _eager(self, inputs: Sequence[torch.Tensor], example: Example) -> str:
        """PyTorch's own error on the same input: a second yardstick, not a verdict."""
        with torch.no_grad():
            result = self.spec.module()(*inputs)
        got = result.to(torch.float64 if result.is_floating_point() else torch.int64).numpy()
        verdict = self.verdict(got, inputs, example)
        return f"PyTorch on the same input: {verdict.ulps:.3g} ulp, error/bound {verdict.headroom:.3g}"

    def _stage(self, inputs: Sequence[torch.Tensor], example: Example) -> str:
        """The first stage of the compilation whose own execution leaves the bound; empty if there are no stages."""
        last = ""
        for name, execute in self.subject.compiled(example.dims).stages():
            got = execute(*inputs)[0]
            if not self.verdict(arrays([got])[0], inputs, example).passed:
                return f"first stage outside the bound: {name}"
            last = name
        return f"none up to {last} is outside the bound: lowering, a kernel or code generation" if last else ""
