"""What the commands share: their options, and the way from names a user typed to things."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from assay import backends, bench
from assay.backends.protocol import Backend, NotRunHere, TargetStatus
from assay.errors import UsageError
from assay.tokens import registry
from assay.tokens.spec import ModelSpec

Model = Annotated[str, typer.Option("--model", help="A model of e2e/, by name.")]
Quant = Annotated[str, typer.Option("--quant", help="Quantisation mode.")]
Depth = Annotated[int | None, typer.Option("--depth", min=1, help="Only the first N layers; synthetic weights only.")]
KeyValue = Annotated[str, typer.Option("--kv", help="Element type of the key/value cache: fp32, fp16, bf16, int8.")]
Target = Annotated[str, typer.Option("--target", help="A name from `assay targets`; default: the widest native one.")]
Threads = Annotated[int, typer.Option("--threads", min=1, max=256, help="Threads of the compiled code.")]
Weights = Annotated[str | None, typer.Option("--weights", help="GGUF file or Hugging Face folder to use instead.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
BackendName = Annotated[str, typer.Option("--backend", help="The compiler under test.")]
Records = Annotated[Path, typer.Option("--records", help="Folder of run records.")]

RUNS = Path("runs")
WIDE = 180  # columns where the output is no terminal: a table in a file or a pipe must not be cut
out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, highlight=False)


def print_json(data: Any) -> None:
    """``data`` on standard output, without colour or wrapping."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def backend(name: str) -> Backend:
    """The compiler under test. Raises :class:`UsageError`."""
    try:
        found = backends.load(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    tell(logging.getLogger(found.name))
    return found


def tell(log: logging.Logger) -> None:
    """Show what a library says of its progress, on standard error."""
    if not any(isinstance(handler, _Told) for handler in log.handlers):
        log.addHandler(_Told())
        log.setLevel(logging.INFO)


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        style = "dim" if record.levelno < logging.WARNING else "yellow"
        err.print(record.getMessage(), style=style, highlight=False, soft_wrap=True, markup=False)


def model(name: str, depth: int | None) -> ModelSpec:
    """The model called ``name``, or its first ``depth`` layers. Raises :class:`UsageError`."""
    spec = registry.model(name)
    return spec if depth is None else spec.first_layers(depth)


def quants(compiler: Backend, names: Sequence[str]) -> list[str]:
    """The modes of the given names; ``all`` is every mode that can be had of any weights.

    Raises :class:`UsageError` for an unknown one.
    """
    if "all" in names:
        return [name for name in compiler.modes()["quant"] if name != "gguf"]
    for name in names:
        check_quant(compiler, name)
    return list(names)


def target(compiler: Backend, name: str) -> TargetStatus:
    """The target called ``name``, or of those that run without emulation the one with the widest vectors.

    Raises :class:`UsageError` for an unknown name and :class:`NotRunHere` for one that cannot run on this machine.
    """
    statuses = compiler.targets()
    if not name:
        chosen = bench.widest(statuses)
        if chosen is None:
            raise NotRunHere("choosing a target: none runs natively on this machine; name one with --target")
        return chosen
    for status in statuses:
        if name in (status.name, status.isa):
            if not status.runs:
                raise NotRunHere(f"target={status.name} does not run on this machine: {status.reason}")
            return status
    raise UsageError(f"unknown target={name!r}; known: {', '.join(status.name for status in statuses)}")


def check_quant(compiler: Backend, quant: str, kind: str = "quant") -> None:
    """Raise :class:`UsageError` unless the compiler knows the mode; ``kind`` is the option's name, quant or kv."""
    known = compiler.modes().get(kind, ())
    if quant not in known:
        raise UsageError(f"unknown {kind}={quant!r} for backend={compiler.name}; known: {', '.join(known)}")
