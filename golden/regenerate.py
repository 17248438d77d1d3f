"""Writes the stored goldens from PyTorch, and says what moved.

    python golden/regenerate.py --model smollm2-135m                  write the golden again
    python golden/regenerate.py --model smollm2-135m --quant w8       the golden of a quantisation mode
    python golden/regenerate.py --model smollm2-135m --check          make it, compare, change nothing
    python golden/regenerate.py --model llama-2-7b --drafted          greedy ids proposed by the compiled model

A golden of a lossy mode is PyTorch's run of the numbers that the mode's integers and scales mean. PyTorch verifies each
greedy id in one float64 pass, whoever proposed it; the provenance says who did.
Exit code 0: what is stored is what PyTorch says. 1: something moved (and was written unless --check). Other codes as
in ``assay --help``. Killed at any moment, the old file stands.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay import backends
from assay.backends.protocol import Backend, Unsupported
from assay.cli.common import target as native_target
from assay.errors import AssayError, UsageError, WeightsError
from assay.tokens.golden import Golden, load_golden
from assay.tokens.judge import generate
from assay.tokens.make_golden import Draft, make_golden
from assay.tokens.moved import difference
from assay.tokens.registry import golden_path, model, models
from assay.tokens.source import resolve
from assay.tokens.spec import ModelSpec


def regenerate(
    name: str, quant: str, *, weights: str | None, check: bool, backend: str, drafted: bool, threads: int
) -> bool:
    """Whether anything moved."""
    spec = model(name)
    if quant not in spec.quants:
        raise UsageError(f"golden of model={name}: quant={quant!r} is not among {', '.join(spec.quants)}")
    target = golden_path(spec, quant)
    path = resolve(spec, weights)
    drafted = drafted or (spec.streamed and quant != "fp32")
    draft = compiled_draft(spec, path, backends.load(backend), quant, threads) if drafted else None
    new = make_golden(spec, path, quant, draft, lambda line: print(line, flush=True), yardstick=not spec.streamed)
    lines = moved(target, new)
    for line in lines or [f"{target.name}: unchanged, {len(new.tensors())} tensors"]:
        print(line)
    if lines and not check:
        new.save(target)
        print(f"wrote {target} ({target.stat().st_size} bytes)")
    return bool(lines)


def compiled_draft(spec: ModelSpec, path: Path, compiler: Backend, quant: str, threads: int) -> Draft:
    """Greedy ids from the compiled model, on the first target that runs here without emulation."""
    name = native_target(compiler, "").name
    compiled = compiler.load_model(str(path), name, quant=quant, threads=threads, context=spec.context)
    return Draft(f"{compiler.name} {name} {quant}", lambda ids, count: generate(compiled, ids, count))


def moved(target: Path, new: Golden) -> list[str]:
    """What is different from what is stored; a stored golden that cannot be read is one line of it."""
    if not target.is_file():
        return [f"{target.name}: not stored yet"]
    try:
        return difference(load_golden(target), new)
    except WeightsError as error:
        return [str(error)]


def main(command: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the stored goldens from PyTorch, or check them.")
    parser.add_argument("--model", action="append", choices=sorted(models()), help="default: every model in e2e/")
    parser.add_argument("--quant", action="append", help="default: every mode that the model has a golden for")
    parser.add_argument("--weights", help="a GGUF file or Hugging Face folder in place of the model's own source")
    parser.add_argument("--backend", default="anvil", help="the compiler whose model proposes")
    parser.add_argument("--drafted", action="store_true", help="let the compiled model propose the greedy ids")
    parser.add_argument("--threads", type=int, default=2, help="of the compiled model")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args(command)
    try:
        changed = [
            regenerate(
                name,
                quant,
                weights=arguments.weights,
                check=arguments.check,
                backend=arguments.backend,
                drafted=arguments.drafted,
                threads=arguments.threads,
            )
            for name in arguments.model or sorted(models())
            for quant in arguments.quant or model(name).quants
        ]
    except (AssayError, Unsupported) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 4)
    return int(any(changed))


if __name__ == "__main__":
    sys.exit(main())
