"""``assay targets``: every target, whether and how it runs here, and why not."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from assay.cli.common import AsJson, BackendName, backend, out, print_json


def targets(as_json: AsJson = False, backend_name: BackendName = "anvil") -> None:
    """List every target: whether and how it runs on this machine, and why not.

    Quick targets are those that a run which names none checks.
    """
    statuses = backend(backend_name).targets()
    if as_json:
        print_json([{**asdict(status), "facts": dict(status.facts)} for status in statuses])
        return
    table = Table(box=None, header_style="bold")
    for column in ("target", "isa", "quick", "runs here", "how, or why not"):
        table.add_column(column, overflow="fold")
    for status in statuses:
        runs = "[green]yes[/]" if status.runs else "[dim]no[/]"
        quick = "quick" if status.facts.get("quick") else ""
        table.add_row(status.name, status.isa, quick, runs, status.executor if status.runs else status.reason)
    out.print(table)
