"""``assay bench``: speeds measured here and now, beside the ceiling of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from assay.cli import common
from assay.cli.common import AsJson, BackendName, Depth, Model, Target, Threads, Weights, err, out, print_json
from assay.errors import AssayError
from assay.measure import peer as peers
from assay.measure.mode_speed import ModeSpeed, decode_speed
from assay.measure.model_table import COLUMNS, ModeRow, mode_row
from assay.measure.op_speed import op_speeds
from assay.measure.peer import Beside, LlamaCpp
from assay.tokens import registry
from assay.tokens.source import resolve
from assay.tokens.tokenizer import load_tokenizer


class TooSlow(AssayError):
    """A mode reaches less of the ceiling than was asked for."""


class Failed(AssayError):
    """A mode says other tokens than PyTorch, or holds more memory than planned."""


app = typer.Typer(help="Speeds measured here and now.", no_args_is_help=True)
PROMPT = "Write a short poem about the sea."


@app.callback()
def bench() -> None:
    """Speeds measured here and now, beside the ceiling of the machine."""


@app.command()
def quant(
    model: Annotated[str, typer.Option("--model", help="A model of e2e/, by name.")] = "smollm2-135m",
    modes: Annotated[list[str] | None, typer.Option("--quant", help="A mode, repeatable; default all.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Tokens of one timed run.")] = 24,
    least: Annotated[float, typer.Option("--least", min=0, max=1, help="Fail below this share, 0 to 1.")] = 0.0,
    llama_cpp: Annotated[bool, typer.Option("--llama-cpp", help="Also against llama.cpp on the same file.")] = False,
    target: Target = "",
    threads: Threads = 2,
    weights: Weights = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Time per token of every mode, the bytes it reads per second, and their share of what the machine reads."""
    spec, compiler = registry.model(model), common.backend(backend)
    chosen = common.target(compiler, target)
    names = modes or [name for name in compiler.modes()["quant"] if name != "gguf"]
    for name in names:
        common.check_quant(compiler, name)
    path = resolve(spec, weights)
    prompt = load_tokenizer(path).encode(PROMPT)
    peer = LlamaCpp(path, threads, spec.context) if llama_cpp and peers.installed() else None
    if llama_cpp and peer is None:
        err.print(f"llama.cpp is not timed: {peers.PACKAGE} is not installed; run: pip install '.[llama]'")

    found, pairs = [], dict[str, Beside]()
    for name in track(names, "modes", console=err, transient=True, disable=not err.is_terminal):
        compiled = compiler.load_model(str(path), chosen.name, quant=name, threads=threads, context=spec.context)
        found.append(decode_speed(compiled, name, prompt, tokens, threads))
        if peer is not None:
            pairs[name] = peers.beside(peer, compiled, prompt)
    if as_json:
        print_json([row.to_dict() | ({"llama_cpp": pairs[row.quant].to_dict()} if pairs else {}) for row in found])
    else:
        out.print(table(found, pairs))
    slow = [row.quant for row in found if row.share < least]
    if slow:
        raise TooSlow(f"timing modes of model={model}: share below --least {least:.0%}: {', '.join(slow)}")


def table(found: list[ModeSpeed], pairs: dict[str, Beside]) -> Table:
    """The speeds for a terminal."""
    shown = Table(box=None, header_style="bold")
    columns = [
        "mode",
        "MB/token",
        "ms/token",
        "tokens/s",
        "GB/s",
        "of ceiling",
        *(["llama.cpp ms/token", "time / llama.cpp's"] if pairs else []),
    ]
    for number, column in enumerate(columns):
        shown.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in found:
        speed = row.speed
        share = f"{row.share:.0%}" + (" (partly in cache)" if speed.share is None else "")
        cells = [
            row.quant,
            f"{speed.weight_bytes / 1e6:.0f}",
            f"{row.tpot_ms:.2f}",
            f"{1e3 / row.tpot_ms:.1f}",
            f"{speed.achieved_gb_s or 0:.1f}",
            speed.doubt or share,
        ]
        if row.quant in pairs:
            pair, ratio = pairs[row.quant], pairs[row.quant].comparison
            cells += [f"{pair.peer_ms:.2f}", f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"]
        shown.add_row(*cells)
    return shown


@app.command()
def model(
    model: Model,
    modes: Annotated[
        list[str] | None, typer.Option("--quant", help="A mode, repeatable, or all; default: those with a golden.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Tokens of the timed run.")] = 32,
    live: Annotated[bool, typer.Option("--live", help="PyTorch verifies tokens now, not a stored golden.")] = False,
    layers: Annotated[bool, typer.Option(help="Also the error along the residual stream.")] = True,
    depth: Depth = None,
    target: Target = "",
    threads: Threads = 2,
    weights: Weights = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Tokens, cost, speed and memory of a model in several modes.

    Exit code 1 when one says wrong tokens or holds more memory than planned.
    """
    spec, compiler = common.model(model, depth), common.backend(backend)
    chosen = common.target(compiler, target)
    about = ["--model", model, "--target", chosen.name, "--threads", str(threads), "--backend", backend]
    about += ["--weights", weights] if weights else []
    about += ["--depth", str(depth)] if depth else []
    prompt = spec.prompts[0]
    generate = ["--prompt", prompt.text, "--max-new-tokens", str(tokens), *["--raw"] * (not prompt.chat)]
    judge = ["--live"] * live + ["--no-layers"] * (not layers)
    names, rows = common.quants(compiler, modes or spec.quants or ["all"]), []
    try:
        for name in names:
            rows.append(mode_row(name, about, judge, generate))
            if not as_json:
                err.print(f"{name}: {rows[-1].fault or 'ok'}", soft_wrap=True)
    finally:  # interrupted after an hour, what was measured is shown
        if as_json:
            print_json([row.to_dict() for row in rows])
        else:
            out.print(_modes_table(rows))
    if failed := [f"{row.quant}: {row.fault}" for row in rows if row.fault]:
        raise Failed(f"model={model}:\n  " + "\n  ".join(failed))


def _modes_table(rows: Sequence[ModeRow]) -> Table:
    shown = Table(*COLUMNS, box=None, header_style="bold")
    for row in rows:
        shown.add_row(*(row.shown.get(column, "-") for column in COLUMNS))
    return shown


@app.command()
def ops(
    least: Annotated[
        float, typer.Option("--least", min=0, max=1, help="Fail below this share of a copy, 0 to 1.")
    ] = 0.0,
    target: Target = "",
    threads: Threads = 2,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """A fused elementwise chain beside a copy, softmax and layer_norm beside PyTorch eager, over [4096, 4096]."""
    compiler = common.backend(backend)
    found = op_speeds(compiler, common.target(compiler, target).name, threads)
    if as_json:
        print_json([speed.to_dict() for speed in found])
    else:
        table = Table("op", "compiled ms", "eager ms", "GB/s", "copy GB/s", "share of copy")
        for speed in found:
            times = f"{speed.compiled_ms:.2f}", f"{speed.eager_ms:.2f}"
            table.add_row(speed.op, *times, f"{speed.gb_s:.1f}", f"{speed.copy_gb_s:.1f}", f"{speed.share:.0%}")
        out.print(table)
    if found[0].share < least:
        raise TooSlow(f"{found[0].op}: {found[0].share:.0%} of the speed of a copy, asked for at least {least:.0%}")
