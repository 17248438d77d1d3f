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
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Compile a model for one target: time of every stage, and of every kernel that was not in the cache."""
    spec = registry.model(model)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    chosen = common.target(compiler, target)
    path = resolve(spec, weights)
    with tempfile.TemporaryDirectory(prefix="assay-cold-") as empty:
        if cold:
            os.environ["ANVIL_CACHE"] = empty
        start = time.perf_counter()
        compiled = compiler.load_model(str(path), chosen.name, quant=quant, context=spec.context)
        wall_ms = (time.perf_counter() - start) * 1e3
        facts = dict(compiled.facts())
    data = {
        "model": model,
        "target": chosen.name,
        "quant": quant,
        "cold": cold,
        "wall_ms": wall_ms,
        "stages_ms": facts.get("compile_ms", {}),
        "kernels": facts.get("kernels"),
        "kernels_compiled_ms": facts.get("kernel_ms", {}),
        "rows": facts.get("rows"),
    }
    if as_json:
        print_json(data)
        return
    out.print(table("stage", data["stages_ms"]))
    if data["kernels_compiled_ms"]:
        out.print(table("kernel", data["kernels_compiled_ms"]))
    compiled_now = len(data["kernels_compiled_ms"])
    out.print(f"{data['kernels']} distinct kernels, {compiled_now} compiled now; {wall_ms / 1e3:.2f} s in all")


def table(what: str, times: dict[str, Any]) -> Table:
    """Names and milliseconds, the longest first."""
    found = Table(box=None, header_style="bold")
    found.add_column(what)
    found.add_column("ms", justify="right")
    for name, ms in sorted(times.items(), key=lambda item: -item[1]):
        found.add_row(name, f"{ms:.0f}")
    return found
