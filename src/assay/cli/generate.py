"""``assay generate``: ask a compiled model, see the text as it comes, and how fast it came."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from assay.cli import common
from assay.cli.common import (
    AsJson,
    BackendName,
    Depth,
    KeyValue,
    Model,
    Quant,
    Target,
    Threads,
    Weights,
    err,
    print_json,
)
from assay.errors import UsageError
from assay.measure import ceiling
from assay.measure.resident import Held, Watch
from assay.tokens import session
from assay.tokens.source import resolve
from assay.tokens.tokenizer import load_tokenizer


def generate(
    model: Model,
    prompt: Annotated[list[str], typer.Option("--prompt", help="The user's message; repeat it for several at once.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Most tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token; 1 draws as the model says.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k most likely tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens that reach this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw from tokens of at least this fraction of the largest.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 weakens tokens already there.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")] = False,
    system: Annotated[str, typer.Option("--system", help="The system message of the chat.")] = "",
    window: Annotated[
        int, typer.Option("--window", min=0, help="Go on with so many of the last tokens when the context is full.")
    ] = 0,
    quant: Quant = "fp32",
    kv: KeyValue = "fp32",
    target: Target = "",
    threads: Threads = 2,
    weights: Weights = None,
    as_json: AsJson = False,
    depth: Depth = None,
    backend: BackendName = "anvil",
) -> None:
    """Generate text, streaming it; then time to first token, time per token, and the share of the ceiling.

    Several prompts are answered side by side, each with the tokens it would get alone; their texts come at the end.
    """
    spec = common.model(model, depth)
    compiler = common.backend(backend)
    common.check_quant(compiler, quant)
    common.check_quant(compiler, kv, "kv")
    chosen = common.target(compiler, target)
    path = resolve(spec, weights)
    tokenizer = load_tokenizer(path)
    each = [tokenizer.encode(text if raw else tokenizer.chat(text, system)) for text in prompt]
    for ids in each:
        session.check_fits(len(ids), max_new_tokens, spec.context, window)
    if window and len(each) > 1:
        raise UsageError(f"window={window} with {len(each)} prompts: expected one; ask them one after the other")
    sampling = sampling_of(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )

    watch = Watch()
    compiled = compiler.load_model(str(path), chosen.name, quant=quant, kv=kv, threads=threads, context=spec.context)
    what = {"model": model, "quant": quant, "kv": kv, "target": chosen.name, "threads": threads}
    what["executor"] = chosen.executor
    if len(each) > 1:
        texts = session.generate_each(compiled, tokenizer, each, max_new_tokens, sampling)
        show_each(prompt, texts, what, as_json)
        return
    show = (lambda _: None) if as_json else (lambda piece: typer.echo(piece, nl=False))
    result = session.generate(compiled, tokenizer, each[0], max_new_tokens, show, sampling, window)
    held = watch.held(compiled.facts())
    numbers, weight_bytes = session.numbers(result, held), held.weight_bytes
    speed = session.speed_of(result.timing, weight_bytes, ceiling.measure(threads, weight_bytes))
    if as_json:
        print_json({**what, "tokens": list(result.tokens), "text": result.text, **numbers, **speed.to_dict()})
        return
    typer.echo()
    err.print(f"[dim]{sentence(result, speed, held)}[/]", soft_wrap=True)


def sampling_of(**choices: float) -> dict[str, float]:
    """What was asked for besides greedy tokens. Raises :class:`UsageError` for a value out of range."""
    if choices["temperature"] < 0:
        raise UsageError(f"temperature={choices['temperature']}: expected 0 (greedy) or more")
    if choices["top_k"] < 0:
        raise UsageError(f"top_k={choices['top_k']}: expected 0 (all) or more")
    if not 0 < choices["top_p"] <= 1:
        raise UsageError(f"top_p={choices['top_p']}: expected more than 0, at most 1 (all)")
    if not 0 <= choices["min_p"] <= 1:
        raise UsageError(f"min_p={choices['min_p']}: expected 0 (all) to 1")
    if choices["repetition_penalty"] <= 0:
        raise UsageError(f"repetition_penalty={choices['repetition_penalty']}: expected more than 0; 1 is none")
    return choices


def show_each(prompts: list[str], texts: list[str], what: dict[str, Any], as_json: bool) -> None:
    """Several prompts with their answers."""
    if as_json:
        pairs = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
        print_json({**what, "answers": pairs})
        return
    for prompt, text in zip(prompts, texts, strict=True):
        typer.echo(f"> {prompt}\n{text}\n")


def sentence(result: session.Generation, speed: session.Speed, held: Held) -> str:
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
    parts.append(f"{held.resident_bytes / 1e9:.2f} GB resident, planned {held}")
    return " · ".join(parts)
