"""The command line. One module per command; this one only lists them."""

from __future__ import annotations

import typer

from assay.cli import (
    agreement,
    bench,
    compare,
    compile,
    coverage,
    errors,
    generate,
    index,
    ledger,
    report,
    targets,
    tokens,
    trend,
    validate,
)

app = typer.Typer(
    name="assay",
    cls=errors.Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Judges compiled numerical code against fp64 goldens with derived bounds, and says what was checked.",
    epilog="Exit codes: 0 all is well · 1 a check failed · 2 bad input · 3 bad weights · 4 unsupported · 5 a tool is "
    "missing · 6 a kernel crashed or hung · 7 the record could not be written.",
)
app.command()(validate.validate)
app.command()(generate.generate)
app.command()(tokens.tokens)
app.command()(compile.compile)
app.command()(compare.compare)
app.command()(trend.trend)
app.command()(targets.targets)
app.command()(ledger.ledger)
app.command()(agreement.agreement)
app.command()(coverage.coverage)
app.command()(report.report)
app.command()(index.index)
app.add_typer(bench.app, name="bench")
