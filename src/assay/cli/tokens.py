"""``assay tokens``: are a compiled model's tokens PyTorch's?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.progress import track
from rich.table import Table
from rich.text import Text

from assay.backends.protocol import TargetStatus
from assay.cli import common
from assay.cli.common import AsJson, BackendName, Model, Quant, Target, Threads, Weights, err, out, print_json
from assay.errors import AssayError, UsageError
from assay.tokens import registry
from assay.tokens.describe import distribution_data, layers_data, prompt_data
from assay.tokens.layers import LayerReport
from assay.tokens.stage import Distribution, PromptResult, TokenStage


class TokensDiffer(AssayError):
    """The compiled model does not say what the golden says."""


def tokens(
    model: Model,
    quant: Quant = "fp32",
    target: Target = "",
    threads: Threads = 2,
    prompts: Annotated[str, typer.Option("--prompts", help="Indices, such as 0,3; default all.")] = "",
    new_tokens: Annotated[int | None, typer.Option("--new-tokens", min=1, help="Greedy tokens; default all.")] = None,
    corpus: Annotated[bool, typer.Option(help="Also the distribution over a fixed text.")] = True,
    layers: Annotated[bool, typer.Option(help="Also the error along the residual stream.")] = True,
    weights: Weights = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Compare log-probabilities, tokens and the residual stream with the stored golden. Exit code 1 on a fault.

    Of a lossy mode also what it costs against the fp32 golden. When the tokens are wrong, the first layer and operation
    whose values leave their bound.
    """
    spec = registry.model(model)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    chosen = common.target(compiler, target)
    stage = TokenStage(spec, quant, weights)
    held = [golden.index for golden in stage.golden.prompts]
    only = indices(prompts, held)
    if new_tokens and new_tokens > spec.new_tokens:
        raise UsageError(f"new_tokens={new_tokens}: the golden of model={model} holds {spec.new_tokens}")

    compiled = stage.load(compiler, chosen.name, threads)
    judged = stage.prompts(compiled, new_tokens, only)
    results = list(track(judged, "prompts", total=len(only), console=err, transient=True, disable=not err.is_terminal))
    found = Findings(
        results=results,
        distribution=stage.distribution(results, list(stage.corpus(compiled)) if corpus else ()),
        cost=stage.cost(compiled, None if corpus else sum(result.forced.positions for result in results)),
        along=stage.layers(compiled, held.index(only[0])) if layers else None,
    )
    if as_json:
        print_json(as_data(model, quant, chosen, found))
    else:
        out.print(render(found))
    if found.faults:
        failed = next((result for result in results if result.failures), None)
        place = [stage.locate(compiled, failed)] if failed else []
        lines = [line for fault in [*found.faults, *place] for line in fault.splitlines()]
        raise TokensDiffer(f"tokens of model={model} on {chosen.name}:\n  " + "\n  ".join(lines))


@dataclass(frozen=True)
class Findings:
    """What a run of the stage showed; ``cost`` and ``along`` are None where they were not looked at."""

    results: list[PromptResult]
    distribution: Distribution
    cost: Distribution | None
    along: LayerReport | None

    @property
    def faults(self) -> list[str]:
        """One text for everything that is wrong."""
        faults = [f"prompt {result.index}: {fault}" for result in self.results for fault in result.failures]
        if not self.distribution.ok:
            faults.append(f"the distribution is not the golden's: {self.distribution}")
        if self.cost and not self.cost.ok:
            faults.append(f"against the fp32 golden: {self.cost}")
        if self.along and self.along.first_outside:
            where = self.along.first_outside
            faults.append(f"first layer outside its bound: {where}, {self.along.headroom:.2f} × at worst")
        return faults


def indices(text: str, known: Sequence[int]) -> list[int]:
    """Prompt indices of a comma-separated list; all that are known for an empty one. Raises :class:`UsageError`."""
    try:
        chosen = [int(part) for part in text.split(",")] if text else list(known)
    except ValueError:
        raise UsageError(f"prompts={text!r}: expected indices such as 0,3") from None
    if wrong := [index for index in chosen if index not in known]:
        raise UsageError(f"prompts={text!r}: index {wrong[0]} is not among {', '.join(map(str, known))}")
    return chosen


def render(found: Findings) -> Group:
    """The results for a terminal."""
    table = Table(box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("prompt", width=30, no_wrap=True, overflow="ellipsis")
    for column in ("equal", "certified", "log-prob error", "/ allowed", "eager's error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("answer", max_width=60, no_wrap=True, overflow="ellipsis")
    for result in found.results:
        table.add_row(
            Text("ok", "green") if result.ok else Text("failed", "red"),
            Text(one_line(result.prompt)),
            str(result.free.equal),
            str(result.free.certified),
            f"{result.forced.max_error:.1e}",
            f"{result.forced.headroom:.3f}",
            f"{result.eager_error:.1e}",
            Text(one_line(result.text)),
        )
    lines = [f"distribution against the golden: {found.distribution}"]
    if found.cost:
        lines.append(f"what the mode costs against fp32: {found.cost}")
    if along := found.along:
        last = along.layers[-1]
        lines.append(
            f"residual stream over {len(along.layers)} layers: worst error/bound {along.headroom:.3f}, relative error "
            f"{last.error:.1e} after {last.name}, growing as depth^{along.growth:.2f} (½ is rounding, 1 a bias)"
        )
    return Group(table, *lines)


def as_data(model: str, quant: str, target: TargetStatus, found: Findings) -> dict[str, Any]:
    """The results as JSON-ready data."""
    return {
        "model": model,
        "quant": quant,
        "target": target.name,
        "ok": not found.faults,
        "faults": found.faults,
        "prompts": [prompt_data(result) for result in found.results],
        "distribution": distribution_data(found.distribution),
        "cost": found.cost and distribution_data(found.cost),
        "layers": found.along and layers_data(found.along),
    }


def one_line(text: str) -> str:
    return text.replace("\n", "⏎")
