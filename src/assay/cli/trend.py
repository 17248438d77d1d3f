"""``assay trend``: how fast the models were over all recorded runs, and where that changed."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from assay.cli.common import RUNS, AsJson, Records, out, print_json
from assay.cli.ledger import read_records
from assay.measure import trend as trends


def trend(
    records: Records = RUNS,
    model: Annotated[str, typer.Option("--model", help="Only this one.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print each model's time over its control (1 is the control, smaller is better), run by run, and its changes."""
    found = [each for each in trends.series(read_records(records)) if model in ("", each.model)]
    if as_json:
        print_json([_described(each) for each in found])
        return
    shown = Table("model", "quant", "target", "testbed", "phase", "runs", "first", "last", "changes for good")
    for each in found:
        values = each.values
        ends = (f"{values[0]:.3f}", f"{values[-1]:.3f}") if values else ("", "")
        names = (each.model, each.quant, each.target, each.testbed, each.phase, str(len(values)))
        shown.add_row(*names, *ends, trends.summary(each.changes()) or _why_none(len(values)))
    out.print(shown)


def _why_none(runs: int) -> str:
    least = 2 * trends.LEAST_SEGMENT
    return "none" if runs >= least else f"none can be seen in under {least} runs"


def _described(each: trends.Series) -> dict[str, object]:
    points = [{"run": p.run, "commit": p.commit, "value": p.value} for p in each.points]
    changes = [{"run": c.point.run, "commit": c.point.commit, "ratio": c.ratio} for c in each.changes()]
    median = float(np.median(each.values)) if each.values else None
    names = {"model": each.model, "quant": each.quant, "target": each.target, "testbed": each.testbed}
    return {**names, "phase": each.phase, "median": median, "points": points, "changes": changes}
