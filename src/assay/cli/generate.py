"""``assay generate``: ask a compiled model, see the text as it comes, and how fast it came."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli import common
from assay.cli.common import AsJson, BackendName, KeyValue, Model, Quant, Target, Threads, Weights, err, print_json
from assay.measure import ceiling
from assay.tokens import registry, session
from assay.tokens.source import resolve
from assay.tokens.tokenizer import load_tokenizer


def generate(
    model: Model,
    prompt: Annotated[str, typer.Option("--prompt", help="The user's message.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Most tokens to generate.")] = 64,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")] = False,
    system: Annotated[str, typer.Option("--system", help="The system message of the chat.")] = "",
    quant: Quant = "fp32",
    kv: KeyValue = "fp32",
    target: Target = "",
    threads: Threads = 2,
    weights: Weights = None,
    as_json: AsJson = False,
    backend: BackendName = "anvil",
) -> None:
    """Generate text greedily, streaming it; then time to first token, time per token, and the share of the ceiling."""
    spec = registry.model(model)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    common.check_quant(compiler, kv, "kv")
    chosen = common.target(compiler, target)
    path = resolve(spec, weights)
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(prompt if raw else tokenizer.chat(prompt, system))
    session.check_fits(len(ids), max_new_tokens, spec.context)

    compiled = compiler.load_model(str(path), chosen.name, quant=quant, kv=kv, threads=threads, context=spec.context)
    show = (lambda _: None) if as_json else (lambda piece: typer.echo(piece, nl=False))
    result = session.generate(compiled, tokenizer, ids, max_new_tokens, show)
    numbers = session.numbers(result, compiled)
    weight_bytes = numbers["weight_bytes"]
    speed = session.speed_of(result.timing, weight_bytes, ceiling.measure(threads, weight_bytes))
    if as_json:
        what = {
            "model": model,
            "quant": quant,
            "kv": kv,
            "target": chosen.name,
            "threads": threads,
            "executor": chosen.executor,
        }
        print_json({**what, "tokens": list(result.tokens), "text": result.text, **numbers, **speed.to_dict()})
        return
    typer.echo()
    err.print(f"[dim]{sentence(result, speed)}[/]", soft_wrap=True)


def sentence(result: session.Generation, speed: session.Speed) -> str:
    """The numbers of one generation in a line."""
    timing = result.timing
    parts = [
        f"{timing.prompt_tokens} prompt tokens, first token after {timing.ttft_ms:.0f} ms",
        f"{len(result.tokens)} tokens" + (f" at {timing.tpot_ms:.1f} ms each" if timing.itl_ms else ""),
    ]
    if speed.achieved_gb_s is not None:
        beside = f"{speed.achieved_gb_s:.1f} GB/s" + (f", {speed.share:.0%} of" if speed.share else "; ceiling")
        parts.append(f"{beside} {speed.ceiling.read_gb_s:.1f} GB/s measured")
    if speed.doubt:
        parts.append(speed.doubt)
    return " · ".join(parts)
