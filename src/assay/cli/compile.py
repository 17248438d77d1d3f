"""``assay compile``: compile a model, and see where the time goes."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Annotated, Any

import typer
from rich.table import Table

from assay.cli import common
from assay.cli.common import AsJson, BackendName, Model, Quant, Target, Weights, out, print_json
from assay.tokens import registry
from assay.tokens.source import resolve


def compile(
    model: Model,
    quant: Quant = "fp32",
    target: Target = "",
    weights: Weights = None,
    cold: Annotated[bool, typer.Option("--cold", help="With an empty compile cache, which is thrown away.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", help="CPU seconds it may take, linkers included: exit code 1 if more.")
    ] = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Compile a model for one target: time of every stage, and of every kernel that was not in the cache.

    The time is that of this process and of those it waited for; the interpreter's start and imports before the command
    are not in it. CPU seconds are the ones to budget: on a busy machine they are what wall seconds are not.
    """
    spec = registry.model(model)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    chosen = common.target(compiler, target)
    path = resolve(spec, weights)
    with tempfile.TemporaryDirectory(prefix="assay-cold-") as empty:
        if cold:
            os.environ["ANVIL_CACHE"] = empty
        start, before = time.perf_counter(), cpu_seconds()
        compiled = compiler.load_model(str(path), chosen.name, quant=quant, context=spec.context)
        wall_ms, cpu_s = (time.perf_counter() - start) * 1e3, cpu_seconds() - before
        facts = dict(compiled.facts())
    data = {
        "model": model,
        "target": chosen.name,
        "quant": quant,
        "cold": cold,
        "wall_ms": wall_ms,
        "cpu_s": cpu_s,
        "budget_s": budget,
        "stages_ms": facts.get("compile_ms", {}),
        "kernels": facts.get("kernels"),
        "kernels_compiled_ms": facts.get("kernel_ms", {}),
        "rows": facts.get("rows"),
    }
    if as_json:
        print_json(data)
    else:
        show(data)
    if budget is not None and cpu_s > budget:
        common.err.print(f"compiling {model}: {cpu_s:.2f} s of CPU, expected at most --budget={budget:g}", style="red")
        raise typer.Exit(1)


def cpu_seconds() -> float:
    """CPU seconds of this process and of all it has waited for."""
    return sum(os.times()[:4])


def show(data: dict[str, Any]) -> None:
    out.print(table("stage", data["stages_ms"]))
    if data["kernels_compiled_ms"]:
        out.print(table("kernel", data["kernels_compiled_ms"]))
    compiled_now = len(data["kernels_compiled_ms"])
    seconds = f"{data['wall_ms'] / 1e3:.2f} s in all, {data['cpu_s']:.2f} s of CPU"
    out.print(f"{data['kernels']} distinct kernels, {compiled_now} compiled now; {seconds}")


def table(what: str, times: dict[str, Any]) -> Table:
    """Names and milliseconds, the longest first."""
    found = Table(box=None, header_style="bold")
    found.add_column(what)
    found.add_column("ms", justify="right")
    for name, ms in sorted(times.items(), key=lambda item: -item[1]):
        found.add_row(name, f"{ms:.0f}")
    return found
