"""Writes the stored goldens from PyTorch, and says what moved.

    python golden/regenerate.py --model smollm2-135m                  write the golden again
    python golden/regenerate.py --model smollm2-135m --quant w8       the golden of a quantisation mode
    python golden/regenerate.py --model smollm2-135m --check          make it, compare, change nothing

A golden of a lossy mode is PyTorch's run of the numbers that the compiler under test (--backend) says the mode means.
Exit code 0: what is stored is what PyTorch says. 1: something moved (and was written unless --check). Other codes as
in ``assay --help``. Killed at any moment, the old file stands.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay import backends
from assay.backends.protocol import Unsupported
from assay.errors import AssayError, UsageError, WeightsError
from assay.tokens.golden import Golden, load_golden
from assay.tokens.make_golden import Arithmetic, make_golden
from assay.tokens.moved import difference
from assay.tokens.registry import golden_path, model, models
from assay.tokens.source import resolve


def regenerate(name: str, quant: str, weights: str | None, check: bool, backend: str) -> bool:
    """Whether anything moved."""
    spec = model(name)
    if quant not in spec.quants:
        raise UsageError(f"golden of model={name}: quant={quant!r} is not among {', '.join(spec.quants)}")
    target = golden_path(spec, quant)
    path = resolve(spec, weights)
    emulation = None if quant == "fp32" else backends.load(backend).emulation(str(path), quant)
    new = make_golden(spec, path, Arithmetic(quant, emulation), progress=lambda line: print(line, flush=True))
    lines = moved(target, new)
    for line in lines or [f"{target.name}: unchanged, {len(new.tensors())} tensors"]:
        print(line)
    if lines and not check:
        new.save(target)
        print(f"wrote {target} ({target.stat().st_size} bytes)")
    return bool(lines)


def moved(target: Path, new: Golden) -> list[str]:
    """What is different from what is stored; a stored golden that cannot be read is one line of it."""
    if not target.is_file():
        return [f"{target.name}: not stored yet"]
    try:
        return difference(load_golden(target), new)
    except WeightsError as error:
        return [str(error)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the stored goldens from PyTorch, or check them.")
    parser.add_argument("--model", action="append", choices=sorted(models()), help="default: every model in e2e/")
    parser.add_argument("--quant", action="append", help="default: every mode that the model has a golden for")
    parser.add_argument("--weights", help="a GGUF file or Hugging Face folder in place of the model's own source")
    parser.add_argument("--backend", default="anvil", help="the compiler that says what a lossy mode means")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    try:
        changed = [
            regenerate(name, quant, arguments.weights, arguments.check, arguments.backend)
            for name in arguments.model or sorted(models())
            for quant in arguments.quant or model(name).quants
        ]
    except (AssayError, Unsupported) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 4)
    return int(any(changed))


if __name__ == "__main__":
    sys.exit(main())
