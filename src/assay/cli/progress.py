"""How far a long command is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from assay.cli.common import err

#: Takes the share that is done, from 0 to 1, and what is going on.
Report = Callable[[float, str], None]


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar over the whole job on standard error; where that is no terminal, a line for every tenth."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(None))
    with Progress(*columns, TaskProgressColumn(), TimeElapsedColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        said = ""

        def at(share: float, what: str) -> None:
            nonlocal said
            bar.update(task, completed=share, description=what)
            line = f"{10 * int(10 * share):3d} %  {what}"
            if not err.is_terminal and line != said:
                typer.echo(line, err=True)
            said = line

        yield at
