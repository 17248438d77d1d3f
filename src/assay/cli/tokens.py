"""``assay tokens``: are a compiled model's tokens PyTorch's?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.progress import track
from rich.table import Table
from rich.text import Text

from assay.backends.protocol import LanguageModel, TargetStatus
from assay.bench import native
from assay.cli import common
from assay.cli.common import AsJson, BackendName, Depth, Model, Target, Threads, Weights, err, out, print_json
from assay.errors import AssayError, UsageError
from assay.measure.resident import Held, Watch
from assay.tokens.describe import distribution_data, layers_data, local_data, prompt_data
from assay.tokens.layers import LayerReport
from assay.tokens.live import Live
from assay.tokens.local import LocalReport
from assay.tokens.stage import Distribution, PromptResult, TokenStage

NATIVELY = "default: where nothing is emulated."
LOCAL_POSITIONS = 32  # each module is looked at in every row: more rows show the same thing again


class TokensDiffer(AssayError):
    """The compiled model does not say what the golden says."""


def tokens(
    model: Model,
    quant: Annotated[
        list[str] | None, typer.Option("--quant", help="Quantisation mode, repeatable, or all; default fp32.")
    ] = None,
    target: Target = "",
    threads: Threads = 2,
    prompts: Annotated[str, typer.Option("--prompts", help="Indices, such as 0,3; default all.")] = "",
    new_tokens: Annotated[int | None, typer.Option("--new-tokens", min=1, help="Greedy tokens; default all.")] = None,
    corpus: Annotated[bool | None, typer.Option(help=f"Also the distribution over a fixed text; {NATIVELY}")] = None,
    layers: Annotated[bool | None, typer.Option(help=f"Also the error along the residual stream; {NATIVELY}")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="PyTorch verifies now; always so for a large model without a golden.")
    ] = False,
    depth: Depth = None,
    weights: Weights = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Compare log-probabilities, tokens and the residual stream with the stored golden. Exit code 1 on a fault.

    Of a lossy mode also what it costs against the fp32 golden. When the tokens are wrong, the first layer and operation
    whose values leave their bound. Several modes are judged one after the other, whatever became of the one before.
    """
    spec = common.model(model, depth)
    compiler = common.backend(backend)
    modes = common.quants(compiler, quant or ["fp32"])
    chosen = common.target(compiler, target)
    corpus = native(chosen) if corpus is None else corpus
    layers = native(chosen) if layers is None else layers
    if new_tokens and new_tokens > spec.new_tokens:
        raise UsageError(f"new_tokens={new_tokens}: expected at most {spec.new_tokens}, as e2e/ says of model={model}")
    live = live or depth is not None  # what is cut to size has no stored golden
    few = new_tokens or spec.new_tokens
    short = replace(spec, new_tokens=few, certified_tokens=min(few, spec.certified_tokens))

    def load(path: Path, name: str) -> LanguageModel:
        return compiler.load_model(str(path), chosen.name, quant=name, threads=threads, context=spec.context)

    def say(line: str) -> None:
        err.print(f"[dim]{line}[/]", highlight=False, soft_wrap=True)

    only = indices(prompts, range(len(spec.prompts))) if prompts else None
    now = Live(short, weights, load, f"{compiler.name} {chosen.name}", say, only)
    asked = Asked(prompts, new_tokens, corpus, layers)
    every: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    for name in modes:
        watch = Watch()
        try:
            if live or (spec.streamed and name not in spec.quants):
                stage, compiled = now.stage(name)
            else:
                stage = TokenStage(spec, name, weights)
                asked.check(stage)
                compiled = load(stage.path, name)
            found = asked.of(stage, compiled, watch)
        except AssayError as error:
            if len(modes) == 1:
                raise
            faults.append(f"quant={name}: {error}")
            out.print(f"{name}: {error}", style="red", soft_wrap=True)
            continue
        every[name] = as_data(model, name, chosen, found)
        if not as_json:
            out.print(summary(name, found) if len(modes) > 1 else render(found))
        faults += [f"{name}: {fault}" if len(modes) > 1 else fault for fault in found.explained(stage, compiled)]
        del stage, compiled  # before the next mode's weights are loaded
    if as_json:
        print_json(list(every.values()) if len(modes) > 1 else every[modes[0]])
    if faults:
        lines = [line for fault in faults for line in fault.splitlines()]
        raise TokensDiffer(f"tokens of model={model} on {chosen.name}:\n  " + "\n  ".join(lines))


def _along(stage: TokenStage, compiled: LanguageModel, prompt: int) -> LayerReport | LocalReport:
    """The residual stream; of a mode that rounds activations every module on its own input."""
    if stage.mode.rounds_activations:
        return stage.local(compiled, prompt, LOCAL_POSITIONS)
    return stage.layers(compiled, prompt)


@dataclass(frozen=True)
class Asked:
    """What a run of the stage looks at; ``prompts`` are indices as they were typed."""

    prompts: str
    new_tokens: int | None
    corpus: bool
    layers: bool

    def check(self, stage: TokenStage) -> list[int]:
        """The prompts' indices. Raises :class:`UsageError` where the golden lacks one, or nothing would be judged."""
        if not stage.golden.prompts and (self.prompts or not self.corpus):
            instead = "leave --prompts out" if self.corpus else "add --corpus"
            what = f"golden of model={stage.spec.name} quant={stage.quant}"
            raise UsageError(f"{what}: it holds no prompts, only a fixed text; {instead}, or --live")
        return indices(self.prompts, [golden.index for golden in stage.golden.prompts])

    def of(self, stage: TokenStage, compiled: LanguageModel, watch: Watch) -> Findings:
        """Everything asked for, of one mode. ``watch`` began before anything was loaded."""
        only = self.check(stage)
        judged = stage.prompts(compiled, self.new_tokens, only)
        shown = track(judged, "prompts", total=len(only), console=err, transient=True, disable=not err.is_terminal)
        results = list(shown)
        memory = watch.held(compiled.facts())
        held = [golden.index for golden in stage.golden.prompts]
        return Findings(
            results=results,
            distribution=stage.distribution(results, list(stage.corpus(compiled)) if self.corpus else ()),
            cost=stage.cost(compiled, None if self.corpus else sum(result.forced.positions for result in results)),
            along=_along(stage, compiled, held.index(only[0])) if self.layers and only else None,
            memory=memory,
        )


@dataclass(frozen=True)
class Findings:
    """What a run of the stage showed; ``cost`` and ``along`` are None where they were not looked at.

    ``memory`` has the peak of compiling in it, unless that was found in the cache, and of a golden made live.
    """

    results: list[PromptResult]
    distribution: Distribution
    cost: Distribution | None
    along: LayerReport | LocalReport | None
    memory: Held

    @property
    def faults(self) -> list[str]:
        """One text for everything that is wrong."""
        faults = [f"prompt {result.index}: {fault}" for result in self.results for fault in result.failures]
        if not self.distribution.ok:
            faults.append(f"the distribution is not the golden's: {self.distribution}")
        if self.cost and not self.cost.ok:
            faults.append(f"against the fp32 golden: {self.cost}")
        if isinstance(self.along, LocalReport) and self.along.first_outside:
            faults.append(f"a module leaves its bound on its own input\n{self.along.first_outside}")
        if isinstance(self.along, LayerReport) and self.along.first_outside:
            where = self.along.first_outside
            faults.append(f"first layer outside its bound: {where}, {self.along.headroom:.2f} × at worst")
        return faults

    def explained(self, stage: TokenStage, compiled: LanguageModel) -> list[str]:
        """The faults, and where the model first goes wrong on a prompt that failed."""
        failed = next((result for result in self.results if result.failures), None)
        return [*self.faults, *([stage.locate(compiled, failed)] if failed else [])]


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
            f"{result.eager_error:.1e}" if result.eager_error == result.eager_error else "-",
            Text(one_line(result.text)),
        )
    lines = [f"distribution against the golden: {found.distribution}"]
    if found.cost:
        lines.append(f"what the mode costs against fp32: {found.cost}")
    along = found.along
    if isinstance(along, LocalReport):
        lines.append(str(along))
    elif along:
        last = along.layers[-1]
        lines.append(
            f"residual stream over {len(along.layers)} layers: worst error/bound {along.headroom:.3f}, relative error "
            f"{last.error:.1e} after {last.name}, growing as depth^{along.growth:.2f} (½ is rounding, 1 a bias)"
        )
    peak = f"{found.memory.resident_bytes / 1e9:.2f} GB at most, with what compiling and judging took"
    lines.append(f"memory: planned {found.memory}; resident {peak}")
    return Group(table, *lines)


def summary(quant: str, found: Findings) -> str:
    """One mode among several in a line."""
    equal = sum(result.free.equal for result in found.results)
    sure = sum(result.free.certified for result in found.results)
    worst = max((result.forced.headroom for result in found.results), default=0.0)
    paid = found.cost
    cost = f"; against fp32 KL {paid.kl_mean:.1e}, same first choice {paid.same_top1:.1%}" if paid else ""
    along = f"; layers {found.along.headroom:.2f} of their bound" if found.along else ""
    return (
        f"{'failed' if found.faults else 'ok':6} {quant:8} {len(found.results)} prompts, {equal} tokens equal, {sure} "
        f"certified; error {worst:.3f} of allowed, KL {found.distribution.kl_mean:.1e}{along}{cost}"
    )


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
        "layers": layers_data(found.along) if isinstance(found.along, LayerReport) else None,
        "modules": local_data(found.along) if isinstance(found.along, LocalReport) else None,
        "memory": found.memory.to_dict(),
    }


def one_line(text: str) -> str:
    return text.replace("\n", "⏎")
