"""Turns every expected failure into one message on standard error and a documented exit code (docs/exit-codes.md)."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from assay.backends.protocol import Finding, NotRunHere, Unsupported

UNSUPPORTED, TOOL_MISSING, CRASHED, NOT_RECORDED = 4, 5, 6, 7
_OF_PROTOCOL: dict[type[Exception], int] = {Unsupported: UNSUPPORTED, NotRunHere: TOOL_MISSING, Finding: CRASHED}


def exit_code(error: BaseException) -> int | None:
    """The documented code of ``error``: its own, if it carries one. None for a fault of the program itself."""
    for kind, code in _OF_PROTOCOL.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return NOT_RECORDED
    code = getattr(error, "exit_code", None)
    return code if isinstance(code, int) else None


class Group(TyperGroup):
    """The command group: no traceback for an error that is the user's or the machine's.

    A fault of the program keeps its traceback, for the report, behind a message that says so.
    """

    def invoke(self, ctx: typer.Context) -> Any:
        warnings.showwarning = _show_warning
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except KeyboardInterrupt:
            say("interrupted; what was recorded before stands")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except Exception as error:
            code = exit_code(error)
            if code is None:
                traceback.print_exc()
                say(f"this is a fault of assay, not of what you gave: {type(error).__name__}: {error}")
                raise typer.Exit(1) from error
            say(str(error))
            raise typer.Exit(code) from error


def _show_warning(message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
    """A warning as one line; those about the code of libraries are not the user's business."""
    if issubclass(category, UserWarning) and not issubclass(category, DeprecationWarning | FutureWarning):
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]warning:[/] {_plain(str(message))}")


def say(message: str) -> None:
    """One error message on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/] {_plain(message)}")


def _plain(message: str) -> str:
    return message.replace("[", r"\[")
