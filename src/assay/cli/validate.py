"""``assay validate``: the main job. Everything a model executes, checked on every target; then tokens, time, page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay import ledger
from assay.cli import common, validation
from assay.cli.common import RUNS, BackendName, Model, Quant, Threads, Weights, out
from assay.cli.progress import progress_bar
from assay.cli.subtests import Finished
from assay.dashboard import grid, page
from assay.dashboard.speed import Speed, speeds
from assay.errors import AssayError
from assay.ledger import LedgerRow
from assay.record.writer import RecordError
from assay.tokens import registry


class ChecksFailed(AssayError):
    """At least one check of a validation failed."""


def validate(
    model: Model,
    quant: Quant = "fp32",
    target: Annotated[list[str] | None, typer.Option("--target", help="Repeatable; default every target.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="How hard to look: demo, quick, ci or deep.")] = "ci",
    threads: Threads = 2,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that check side by side.")] = 2,
    weights: Weights = None,
    records: Annotated[Path, typer.Option("--records", help="Folder for the run records and the page.")] = RUNS,
    backend: BackendName = "anvil",
) -> None:
    """Check a model from its ops to its tokens on every target, time it, write the page. Exit code 0: all is well."""
    spec = registry.model(model)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    place = records.resolve()
    job = validation.Validation(spec, compiler, quant, profile, tuple(target or ()), threads, workers, place, weights)
    with progress_bar() as progress:
        part = validation.TIMED_SHARE
        answer = job.measure(lambda share, what: progress(part * share, what))
        finished = job.check(lambda share, what: progress(part + (1 - part) * share, what))
    rows = job.rows()
    where = page.write(rows, place / "report.html")
    book = ledger.rows(rows)
    show(book)
    lines = [f"checks   {finished.summary}", f"asked    {spec.prompts[0].text}", f"answer   {answer.text.strip()}"]
    lines += [f"speed    {speed_line(speed)}" for speed in speeds(rows)]
    out.print(*lines, f"record   {place}", f"page     {where}", sep="\n", markup=False, soft_wrap=True)
    require_all_well(model, book, finished)


def show(book: list[LedgerRow]) -> None:
    """The ledger as a grid, and the reason of every cell that is not green."""
    table = grid.grid(book)
    out.print(grid.render(table))
    for each in table.reasons():
        out.print(f"{each.status} ({len(each.cells)} cells): {each.reason}", soft_wrap=True, markup=False)
    out.print()


def speed_line(speed: Speed) -> str:
    """ms/token beside the ceiling; nothing about speed where a check of the model failed."""
    if not speed.accurate:
        return f"{speed.model} on {speed.target}: hidden, because a check of this model failed"
    line = f"{speed.model} on {speed.target}: {speed.tpot_ms:.1f} ms/token"
    if speed.achieved_gb_s and speed.floor_ms:
        line += f", {speed.achieved_gb_s:.1f} GB/s read; the ceiling of {speed.ceiling_gb_s:.1f} GB/s allows "
        line += f"{speed.floor_ms:.1f} ms/token" + (f" ({speed.share:.0%} reached)" if speed.share else "")
    if speed.prefill_speedup:
        line += f"; prefill {speed.prefill_speedup:.2f} × PyTorch eager"
    return line


def require_all_well(model: str, book: list[LedgerRow], finished: Finished) -> None:
    """Raise unless every check that ran is well and every result was recorded."""
    if finished.code == RecordError.exit_code:
        raise RecordError(finished.tail)
    failed = [f"{row.name} on {row.target}: {row.reason}" for row in book if row.status == "failed"]
    if failed:
        raise ChecksFailed("\n  ".join([f"validating model={model}: {len(failed)} cells failed", *failed]))
    if finished.code:
        raise ChecksFailed(f"validating model={model}: pytest ended with code {finished.code}:\n{finished.tail}")
