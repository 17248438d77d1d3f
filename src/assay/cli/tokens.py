"""``assay tokens``: are a compiled model's tokens PyTorch's?"""

from __future__ import annotations

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
from assay.tokens.describe import layers_data, prompt_data
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
    layers: Annotated[bool, typer.Option(help="Also the error along the residual stream.")] = True,
    weights: Weights = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Compare log-probabilities, tokens and the residual stream with the stored golden. Exit code 1 on a fault."""
    spec = registry.model(model)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    chosen = common.target(compiler, target)
    stage = TokenStage(spec, quant, weights)
    only = indices(prompts, len(spec.prompts))
    if new_tokens and new_tokens > spec.new_tokens:
        raise UsageError(f"new_tokens={new_tokens}: the golden of model={model} holds {spec.new_tokens}")

    compiled = stage.load(compiler, chosen.name, threads)
    judged = stage.prompts(compiled, new_tokens, only)
    results = list(track(judged, "prompts", total=len(only), console=err, transient=True, disable=not err.is_terminal))
    distribution = stage.distribution(results)
    along = stage.layers(compiled, only[0]) if layers else None
    faults = faults_of(results, distribution, along)
    if as_json:
        print_json(as_data(model, quant, chosen, results, distribution, along, faults))
    else:
        out.print(render(results, distribution, along))
    if faults:
        raise TokensDiffer(f"tokens of model={model} on {chosen.name}:\n  " + "\n  ".join(faults))


def indices(text: str, count: int) -> list[int]:
    """Prompt indices of a comma-separated list; all for an empty one. Raises :class:`UsageError`."""
    try:
        chosen = [int(part) for part in text.split(",")] if text else list(range(count))
    except ValueError:
        raise UsageError(f"prompts={text!r}: expected indices such as 0,3") from None
    if wrong := [index for index in chosen if not 0 <= index < count]:
        raise UsageError(f"prompts={text!r}: index {wrong[0]} is not among 0 to {count - 1}")
    return chosen


def faults_of(results: list[PromptResult], distribution: Distribution, along: LayerReport | None) -> list[str]:
    """One text for everything that is wrong."""
    faults = [f"prompt {result.index}: {fault}" for result in results for fault in result.failures]
    if not distribution.ok:
        faults.append(
            f"divergence is {distribution.headroom:.2f} × allowed, same first choice {distribution.same_top1:.2%}"
        )
    if along and along.first_outside:
        faults.append(f"first layer outside its bound: {along.first_outside}, {along.headroom:.2f} × at worst")
    return faults


def render(results: list[PromptResult], distribution: Distribution, along: LayerReport | None) -> Group:
    """The results for a terminal."""
    table = Table(box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("prompt", width=30, no_wrap=True, overflow="ellipsis")
    for column in ("equal", "certified", "log-prob error", "/ allowed", "eager's error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("answer", max_width=60, no_wrap=True, overflow="ellipsis")
    for result in results:
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
    d = distribution
    lines = [
        f"distribution over {d.positions} positions: KL mean {d.kl_mean:.1e} (allowed {d.limits.kl_mean:.0e}), "
        f"99.9 % {d.kl_p999:.1e} (allowed {d.limits.kl_p999:.0e}), same first choice {d.same_top1:.2%}"
    ]
    if along:
        last = along.layers[-1]
        lines.append(
            f"residual stream over {len(along.layers)} layers: worst error/bound {along.headroom:.3f}, relative error "
            f"{last.error:.1e} after {last.name}, growing as depth^{along.growth:.2f} (½ is rounding, 1 a bias)"
        )
    return Group(table, *lines)


def as_data(
    model: str,
    quant: str,
    target: TargetStatus,
    results: list[PromptResult],
    distribution: Distribution,
    along: LayerReport | None,
    faults: list[str],
) -> dict[str, Any]:
    """The results as JSON-ready data."""
    d = distribution
    spread = {"positions": d.positions, "kl_mean": d.kl_mean, "kl_p999": d.kl_p999, "same_top1": d.same_top1}
    return {
        "model": model,
        "quant": quant,
        "target": target.name,
        "ok": not faults,
        "faults": faults,
        "prompts": [prompt_data(result) for result in results],
        "distribution": {**spread, "ok": d.ok},
        "layers": along and layers_data(along),
    }


def one_line(text: str) -> str:
    return text.replace("\n", "⏎")
