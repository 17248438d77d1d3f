"""Writes the stored goldens from PyTorch alone, and says what moved.

    python golden/regenerate.py --model smollm2-135m            write the golden again
    python golden/regenerate.py --model smollm2-135m --check    make it, compare, change nothing

Exit code 0: what is stored is what PyTorch says. 1: something moved (and was written unless --check). Other codes as
in ``assay --help``.
"""

from __future__ import annotations

import argparse
import sys

from assay.errors import AssayError, UsageError
from assay.tokens.golden import load_golden
from assay.tokens.make_golden import difference, make_golden
from assay.tokens.registry import golden_path, model, models
from assay.tokens.source import resolve


def regenerate(name: str, quant: str, weights: str | None, check: bool) -> bool:
    """Whether anything moved."""
    spec = model(name)
    if quant not in spec.quants:
        raise UsageError(f"golden of model={name}: quant={quant!r} is not among {', '.join(spec.quants)}")
    target = golden_path(spec, quant)
    new = make_golden(spec, resolve(spec, weights), progress=print)
    lines = difference(load_golden(target), new) if target.is_file() else [f"{target.name}: not stored yet"]
    for line in lines or [f"{target.name}: unchanged, {len(new.tensors())} tensors"]:
        print(line)
    if lines and not check:
        new.save(target)
        print(f"wrote {target} ({target.stat().st_size} bytes)")
    return bool(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the stored goldens from PyTorch, or check them.")
    parser.add_argument("--model", action="append", choices=sorted(models()), help="default: every model in e2e/")
    parser.add_argument("--quant", default="fp32")
    parser.add_argument("--weights", help="a GGUF file or Hugging Face folder in place of the model's own source")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    try:
        moved = [
            regenerate(name, arguments.quant, arguments.weights, arguments.check)
            for name in arguments.model or sorted(models())
        ]
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return int(any(moved))


if __name__ == "__main__":
    sys.exit(main())
