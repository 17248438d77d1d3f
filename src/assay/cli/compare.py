"""``assay compare``: is this revision slower than that one? Decided by the A/B protocol, on this machine, now."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from assay.cli import common
from assay.cli.common import RUNS, AsJson, BackendName, Model, Target, Threads, Weights, err, out, print_json
from assay.cli.progress import progress_bar
from assay.errors import AssayError
from assay.measure import ab, revisions, versus
from assay.measure.checkout import WORKING_TREE, checkout
from assay.measure.revisions import Finding, Outcome
from assay.record import CaseKey, Metric, Result, Writer, provenance
from assay.tokens import registry

CHECK = "compare"
Head = Annotated[str, typer.Option("--head", help="The revision in question; default: the files as they are.")]


class Slower(AssayError):
    """Head is slower than base, in two batches."""


def compare(
    model: Model,
    base: Annotated[str, typer.Option("--base", help="The revision to compare with.")] = "HEAD~1",
    head: Head = WORKING_TREE,
    quant: Annotated[list[str] | None, typer.Option("--quant", help="Repeatable; default fp32.")] = None,
    target: Target = "",
    threads: Threads = 2,
    pairs: Annotated[int, typer.Option("--pairs", min=ab.PAIRS, help="Rounds per batch.")] = ab.PAIRS,
    weights: Weights = None,
    records: Annotated[Path, typer.Option("--records", help="Folder for the run record.")] = RUNS,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Time two revisions against each other. Exit code 1 if head is slower, beyond this machine's own noise, twice."""
    spec, compiler = registry.model(model), common.backend(backend)
    modes = quant or ["fp32"]
    for mode in modes:
        common.check_quant(compiler, mode)
    chosen = common.target(compiler, target)
    root = registry.project_root()
    before, after = checkout(root, base), checkout(root, head)
    run = provenance.run(seed=0, command=shlex.join(["assay", *sys.argv[1:]]), backend=backend, profile=CHECK)
    writer = Writer(records.resolve() / f"{run.run}.jsonl")
    writer.write(run)
    outcomes: list[Outcome] = []
    for mode in modes:
        subject = versus.Subject(spec.name, mode, chosen.name, threads, backend, weights)
        with progress_bar() as progress:
            outcomes.append(revisions.compare(subject, before.tree, after.tree, pairs, progress))
        for finding in outcomes[-1].findings:
            writer.write(_row(finding, outcomes[-1], run.run))
    if as_json:
        said = [_described(finding, outcome) for outcome in outcomes for finding in outcome.findings]
        print_json({"base": before.commit, "head": after.commit, "rows": said})
    else:
        out.print(_table(outcomes, f"base {before.commit[:12]}, head {after.commit[:12]} ({head})"))
    _conclude(outcomes, base, head)


def _conclude(outcomes: Sequence[Outcome], base: str, head: str) -> None:
    """Raise :class:`Slower` if anything is; say when the whole session is in doubt."""
    if any(outcome.suspect for outcome in outcomes):
        err.print("suspect: nearly all rows moved the same way, as when the machine itself changed speed; repeat it")
    slower = [finding for outcome in outcomes for finding in outcome.findings if finding.change == "slower"]
    if slower:
        lines = [f"comparing {head} with {base}: {len(slower)} rows are slower, in two batches each"]
        raise Slower("\n  ".join([*lines, *(f"{finding.name}: {finding}" for finding in slower)]))


def _row(finding: Finding, outcome: Outcome, run: str) -> Result:
    subject = finding.subject
    name = f"{subject.model}-{subject.quant}-{subject.target}-{finding.phase}"
    key = CaseKey(name, "speed", subject.model, subject.target, quant=subject.quant, variant=finding.phase)
    metrics: list[Metric] = []
    if finding.comparison:
        sides = zip(("base", "head"), zip(*finding.samples, strict=True), strict=True)
        metrics = [Metric(f"{s}_ms", finding.ms(s), "ms", "lower", "timed", t) for s, t in sides]  # pyright: ignore[reportArgumentType]
        metrics += [
            Metric("ratio", finding.comparison.ratio, "head/base", "lower", "timed"),
            Metric("floor", outcome.floor, "head/head - 1", "none", "timed"),
        ]
    bad = finding.change == "slower"
    status, reason = ("failed" if bad else "ok"), (str(finding) if bad else "")
    return Result(key, CHECK, status, reason, "in-process", metrics=tuple(metrics), run=run)


def _described(finding: Finding, outcome: Outcome) -> dict[str, Any]:
    comparison = finding.comparison
    return {
        "row": finding.name,
        "change": finding.change,
        "base_ms": finding.ms("base") if comparison else None,
        "head_ms": finding.ms("head") if comparison else None,
        "ratio": comparison.ratio if comparison else None,
        "interval": [comparison.low, comparison.high] if comparison else None,
        "p_value": comparison.p_value if comparison else None,
        "ceiling_share": outcome.share(finding),
        "floor": outcome.floor,
    }


def _table(outcomes: Sequence[Outcome], title: str) -> Table:
    shown = Table(title=title, title_justify="left")
    for column in ("row", "base", "head", "head/base", "95 %", "noise floor", "share of the ceiling", "verdict"):
        shown.add_column(column, justify="left" if column in ("row", "verdict") else "right")
    for outcome in outcomes:
        for finding in outcome.findings:
            comparison, share = finding.comparison, outcome.share(finding)
            numbers = ["", "", "", "", ""]
            if comparison:
                numbers = [f"{finding.ms('base'):.3f} ms", f"{finding.ms('head'):.3f} ms", f"{comparison.ratio:.3f}"]
                numbers += [f"{comparison.low:.3f}–{comparison.high:.3f}", f"{outcome.floor:.1%}"]
            colour = {"slower": "red", "faster": "green"}.get(finding.change, "default")
            verdict = f"[{colour}]{finding.change}[/]"
            shown.add_row(finding.name, *numbers, f"{share:.0%}" if share else "", verdict)
    return shown
